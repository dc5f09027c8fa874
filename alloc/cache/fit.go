package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// take allocates the front of an inactive block, which is in no pool, for a request
// that needs a block of that size. It puts the remainder, if there is one, into its
// pool, and returns the number of them. The caller accounts for what becomes or
// ceases to be inactive.
func (c *Cache) take(i id, n, size alloc.Bytes, owner cachelock.Owner) (b *block, remainders int64) {
	b = c.blocks.At(i)
	c.blocks.Touch(i)
	if b.whole() && !c.expands() {
		c.stats.Releasable -= b.size
	}
	if c.splits(b, size) {
		c.split(i, b, size)
		remainders = 1
	}
	b.state = alloc.Allocated
	b.left = id(owner)
	b.setSlack(b.size - n)
	c.live.add(i, b.ptr)
	usageAdd(&c.stats.Requested, n, 1)
	usageAdd(&c.stats.Allocated, b.size, 1)
	if c.checkReuse != nil {
		c.checkReuse(b.ptr, b.size, c.poolsAt(b.stream).stream)
	}
	return b, remainders
}

// split cuts a block down to size, and puts what remains into its pool.
func (c *Cache) split(i id, b *block, size alloc.Bytes) {
	j, rest := c.blocks.Get()
	// Field by field: the processor waits for a block that is built elsewhere and copied.
	rest.ptr, rest.size = b.ptr+alloc.Ptr(size), b.size-size
	rest.prev, rest.next = i, b.next
	rest.pool, rest.state, rest.stream = b.pool, alloc.Inactive, b.stream
	if b.next != none {
		c.blocks.At(b.next).prev = j
	}
	b.next, b.size = j, size
	c.pool(c.poolsAt(b.stream), j, rest)
}

// join puts an inactive block into its pool, as one with its inactive
// neighbours, and returns the number of those.
func (c *Cache) join(i id, b *block) (neighbours int64) {
	p := c.poolsAt(b.stream)
	if j := b.prev; j != none {
		if before := c.blocks.At(j); before.state == alloc.Inactive {
			c.unpool(p, j, b.pool)
			c.blocks.Touch(j)
			c.absorb(j, before, i, b)
			i, b = j, before
			neighbours++
		}
	}
	if j := b.next; j != none {
		if after := c.blocks.At(j); after.state == alloc.Inactive {
			c.unpool(p, j, b.pool)
			c.absorb(i, b, j, after)
			neighbours++
		}
	}
	c.pool(p, i, b)
	if b.whole() && !c.expands() {
		c.stats.Releasable += b.size
	}
	return neighbours
}

// absorb makes block j, gone, which follows block i, a part of it. The caller has
// announced the change of i.
func (c *Cache) absorb(i id, b *block, j id, gone *block) {
	b.size += gone.size
	b.next = gone.next
	if b.next != none {
		c.blocks.At(b.next).prev = i
	}
	c.blocks.Put(j)
}

// pool puts an inactive block into its pool.
func (c *Cache) pool(p *pools, i id, b *block) {
	switch {
	case c.tuning != nil:
		c.tuning.pool(p, i, b)
	case b.pool == alloc.SmallPool:
		p.small.add(i)
	default:
		p.large.add(i)
	}
}

// unpool takes a block out of its pool.
func (c *Cache) unpool(p *pools, i id, pool alloc.Pool) {
	switch {
	case c.tuning != nil:
		c.tuning.unpool(p, i, pool)
	case pool == alloc.SmallPool:
		p.small.remove(i)
	default:
		p.large.remove(i)
	}
}

// fit returns the block of a pool that fits best, or none.
func (c *Cache) fit(p *pools, pool alloc.Pool, size alloc.Bytes) id {
	switch {
	case c.tuning != nil:
		return c.tuning.fit(p, pool, size)
	case pool == alloc.SmallPool:
		return p.small.fit(size)
	default:
		return p.large.fit(size)
	}
}

// expands reports whether all segments are expandable.
func (c *Cache) expands() bool { return c.tuning != nil && c.tuning.expandable != nil }

// blockSize returns the size of the block that serves a request of n bytes.
func (c *Cache) blockSize(n alloc.Bytes) alloc.Bytes {
	if c.tuning != nil {
		return c.tuning.blockSize(n)
	}
	return blockSize(n)
}

// splits reports whether a block is split for a request that needs that size.
func (c *Cache) splits(b *block, size alloc.Bytes) bool {
	if c.tuning != nil {
		return c.tuning.splits(b, size)
	}
	return poolSplits(b.pool, b.size-size)
}
