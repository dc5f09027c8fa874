package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// reuse serves a request of n bytes from an inactive block of at least size bytes; it returns nil
// if none fits. The block has no owner, and is not in the table of those without. The caller holds mu.
func (c *Cache) reuse(n, size alloc.Bytes, s alloc.Stream) (id, *block) {
	p := c.streams.of(s)
	if p == nil || c.closed {
		return none, nil
	}
	free := p.free[poolOf(size)]
	i := free.fit(size)
	if i == none {
		return none, nil
	}
	b := c.blocks.At(i)
	if !c.fitting.serves(b, size) {
		return none, nil
	}
	c.takeFree(free, i, b, n, size)
	return i, b
}

// takeFree is take of a block that is in its free list.
func (c *Cache) takeFree(free freeList, i id, b *block, n, size alloc.Bytes) {
	c.unlist(free, i, b)
	remainders := c.take(free, i, b, n, size)
	change(&c.stats.Inactive, -b.size, remainders-1)
}

// tick advances the clock by count for a request that needs a large block, as only large blocks
// have an age. The caller holds mu.
func (c *Cache) tick(size alloc.Bytes, count uint32) {
	if size > smallLimit {
		c.clock += count
	}
}

// take allocates the front of an inactive block for a request. The block must not be in its list. The
// remainder, if any, is listed there; take returns how many there are (0 or 1). The caller accounts for
// the change of inactive memory.
func (c *Cache) take(free freeList, i id, b *block, n, size alloc.Bytes) (remainders int64) {
	c.blocks.Touch(i)
	if c.fitting.splits(b, size) {
		j, rest := c.cut(i, b, size)
		c.list(free, j, rest)
		remainders = 1
	}
	b.state = alloc.Allocated
	b.left = id(noOwner)
	b.setSlack(b.size - n)
	change(&c.stats.Requested, n, 1)
	change(&c.stats.Allocated, b.size, 1)
	if c.checkReuse != nil {
		c.checkReuse(b.ptr, b.size, c.streams.at(b.stream).stream)
	}
	return remainders
}

// cut makes the part of a block after its first size bytes a block of its own, with the same state
// and in no list.
func (c *Cache) cut(i id, b *block, size alloc.Bytes) (j id, rest *block) {
	j, rest = c.blocks.Get()
	// Field by field: the processor waits for a block that is built elsewhere and copied.
	rest.ptr, rest.size = b.ptr+alloc.Ptr(size), b.size-size
	rest.prev, rest.next = i, b.next
	rest.pool, rest.state, rest.stream = b.pool, b.state, b.stream
	if b.next != none {
		c.blocks.At(b.next).prev = j // no Touch: of prev a view reads only whether there is one
	}
	b.next, b.size = j, size
	return j, rest
}

// free is Free for a caller that holds mu.
func (c *Cache) free(p alloc.Ptr) error {
	i := none
	if !c.closed {
		i = c.live.remove(p)
	}
	if i == none {
		return c.whyNotFreed(p)
	}
	c.release(i, c.blocks.At(i))
	return nil
}

// release frees an allocated block that is in no table.
func (c *Cache) release(i id, b *block) {
	change(&c.stats.Requested, -b.requested(), -1)
	change(&c.stats.Allocated, -b.size, -1)
	if len(c.pending.uses) == 0 || !c.suspend(i, b) {
		c.retire(i, b)
	}
}

// retire makes a block inactive that was not.
func (c *Cache) retire(i id, b *block) {
	c.blocks.Touch(i)
	size := b.size
	b.state = alloc.Inactive
	change(&c.stats.Inactive, size, 1-c.join(i, b))
}

// join merges an inactive block with its inactive neighbours, lists the result, and returns the
// number of neighbours.
func (c *Cache) join(i id, b *block) (neighbours int64) {
	free := c.freeList(b)
	if j := b.prev; j != none {
		if before := c.blocks.At(j); before.state == alloc.Inactive {
			c.unlist(free, j, before)
			c.blocks.Touch(j)
			c.absorb(j, before, i, b)
			i, b = j, before
			neighbours++
		}
	}
	if j := b.next; j != none {
		if after := c.blocks.At(j); after.state == alloc.Inactive {
			c.unlist(free, j, after)
			c.absorb(i, b, j, after)
			neighbours++
		}
	}
	c.list(free, i, b)
	return neighbours
}

// absorb merges block j, which follows block i, into i. The caller has already announced the change
// of i.
func (c *Cache) absorb(i id, b *block, j id, gone *block) {
	b.size += gone.size
	b.next = gone.next
	if b.next != none {
		c.blocks.At(b.next).prev = i
	}
	c.blocks.Put(j)
}

// freeList returns the list that an inactive block belongs in.
func (c *Cache) freeList(b *block) freeList { return c.streams.at(b.stream).free[b.pool] }

// list enters an inactive block into its free list. A block that fills its segment can go back to
// the driver whole; for the others, the lists of expandable segments count how much can.
func (c *Cache) list(free freeList, i id, b *block) {
	b.slack = c.clock // the time since which it is unused
	free.add(i, b)
	if b.whole() {
		c.stats.Releasable += b.size
	}
}

// unlist takes an inactive block out of its free list.
func (c *Cache) unlist(free freeList, i id, b *block) {
	free.remove(i, b)
	if b.whole() {
		c.stats.Releasable -= b.size
	}
}

// handOut gives a block that was just taken to the caller of Alloc. The caller holds mu.
func (c *Cache) handOut(i id, b *block, r request) (alloc.Ptr, alloc.Bytes, error) {
	p, size := b.ptr, b.size
	if r.enter == nil {
		c.live.add(i, p)
		return p, size, nil
	}
	owner, err := r.enter(cachelock.Block(i), p, size)
	if err != nil {
		c.release(i, b)
		return 0, 0, err
	}
	b.left = id(owner)
	return p, size, nil
}

// insert enters a segment as a single block, which is in no list yet.
func (c *Cache) insert(s segment, state alloc.BlockState) (first id, b *block) {
	first, b = c.blocks.Get()
	*b = block{ptr: s.ptr, size: s.size, pool: s.pool, state: state, stream: c.streams.join(s.stream)}
	s.first = first
	c.segments.insert(s)
	return first, b
}
