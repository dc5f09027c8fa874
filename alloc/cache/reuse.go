package cache

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// reuse serves a request of n bytes from an inactive block of at least size bytes; it returns nil
// if none fits. The caller holds mu.
func (c *Cache) reuse(n, size alloc.Bytes, s alloc.Stream) *block {
	p := c.streams.of(s)
	if p == nil || c.closed {
		return nil
	}
	free := p.free[poolOf(size)]
	i := free.fit(size)
	if i == none {
		return nil
	}
	b := c.blocks.At(i)
	if !c.fitting.serves(b, size) {
		return nil
	}
	c.takeFree(free, i, b, n, size)
	return b
}

// takeFree is take of a block that is in its free list.
func (c *Cache) takeFree(free freeList, i id, b *block, n, size alloc.Bytes) {
	c.unlist(free, i, b)
	remainders := c.take(i, b, n, size)
	change(&c.stats.Inactive, -b.size, remainders-1)
}

// tick advances the clock by count for a request that needs a large block, as only large blocks
// have an age. The caller holds mu.
func (c *Cache) tick(size alloc.Bytes, count uint32) {
	if size > smallLimit {
		c.clock += count
	}
}

// take allocates the front of an inactive block for a request. The block must be in no list. The
// remainder, if any, is listed; take returns how many there are (0 or 1). The caller accounts for
// the change of inactive memory.
func (c *Cache) take(i id, b *block, n, size alloc.Bytes) (remainders int64) {
	c.blocks.Touch(i)
	if c.fitting.splits(b, size) {
		j, rest := c.cut(i, b, size)
		c.list(c.freeList(rest), j, rest)
		remainders = 1
	}
	b.state = alloc.Allocated
	b.left = id(noOwner)
	b.setSlack(b.size - n)
	c.live.add(i, b.ptr)
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

// free is Free for a caller that holds mu, and for a block that belongs to owner.
func (c *Cache) free(p alloc.Ptr, owner cachelock.Owner) error {
	i := none
	if !c.closed {
		i = c.live.remove(p, owner)
	}
	if i == none {
		return c.whyNotFreed(p)
	}
	b := c.blocks.At(i)
	change(&c.stats.Requested, -b.requested(), -1)
	change(&c.stats.Allocated, -b.size, -1)
	if len(c.pending.uses) != 0 && c.suspend(i, b) {
		return nil
	}
	c.retire(i, b)
	return nil
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
	free.add(i)
	if b.whole() {
		c.stats.Releasable += b.size
	}
}

// unlist takes an inactive block out of its free list.
func (c *Cache) unlist(free freeList, i id, b *block) {
	free.remove(i)
	if b.whole() {
		c.stats.Releasable -= b.size
	}
}

// handOut gives a block that was just taken to the caller of Alloc. The caller holds mu.
func (c *Cache) handOut(b *block, r request) (alloc.Ptr, alloc.Bytes, error) {
	p, size := b.ptr, b.size
	if r.enter == nil {
		return p, size, nil
	}
	owner, err := r.enter(p, size)
	if err != nil {
		return 0, 0, errors.Join(err, c.free(p, noOwner))
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

// whyNotFreed is the error of an address that cannot be freed.
func (c *Cache) whyNotFreed(p alloc.Ptr) error {
	if c.closed {
		return c.refuse(fmt.Sprintf("free %v", p))
	}
	return fmt.Errorf("free %v on %s: %w", p, c.device, c.whyNotLive(p))
}

// whyNotLive returns why an address is not a live block's.
func (c *Cache) whyNotLive(p alloc.Ptr) error {
	s, ok := c.segments.at(p)
	for i := s.first; ok && i != none; i = c.blocks.At(i).next {
		b := c.blocks.At(i)
		if p >= b.end() {
			continue
		}
		switch {
		case b.state == alloc.Inactive, b.state == alloc.Pending:
			return alloc.ErrDoubleFree
		case b.state == alloc.Allocated && p == b.ptr && b.left != none:
			return cachelock.ErrOwned
		}
		break
	}
	return alloc.ErrUnknownPtr
}
