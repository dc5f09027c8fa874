package cache

import (
	"errors"
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
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
	c.takeListed(free, i, b, n, size)
	return i, b
}

// takeListed is take of a block that is in its free list.
func (c *Cache) takeListed(free freeList, i id, b *block, n, size alloc.Bytes) {
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
		j, rest := c.split(i, b, size)
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

// split makes the part of a block after its first size bytes a block of its own, with the same state
// and in no list.
func (c *Cache) split(i id, b *block, size alloc.Bytes) (j id, rest *block) {
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

// assign gives a block that was just taken its owner: a ledger, or the table of blocks without one. If the ledger
// refuses it, the block is freed. The caller holds mu.
func (c *Cache) assign(i id, b *block, r request) (alloc.Ptr, alloc.Bytes, error) {
	p, size := b.ptr, b.size
	if r.register == nil {
		c.live.add(i, p)
		return p, size, nil
	}
	owner, err := r.register(cachelock.Block(i), p, size)
	if err != nil {
		c.release(i, b)
		return 0, 0, err
	}
	b.left = id(owner)
	return p, size, nil
}

// allocSlow is the slow path of Alloc, for a request that no inactive block fits: it may ask the driver. Each step runs
// only if the one before it found no memory:
//
//  1. an inactive block, which another request may have left meanwhile
//  2. memory from the driver, after the policy has given back what is over its limit
//  3. the same, after the policy has given back blocks that are kept for large requests
//  4. the same, after all free memory went back
func (c *Cache) allocSlow(r request) (alloc.Ptr, alloc.Bytes, error) {
	if err := c.streams.check(r.stream); err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", r.n, c.device, err)
	}
	var p alloc.Ptr
	var size alloc.Bytes
	var refused error
	locked, err := c.driver.lock(func() (ok bool) {
		p, size, ok, refused = c.reuseFor(r)
		return ok
	})
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", r.n, c.device, err)
	}
	if !locked {
		return p, size, refused
	}
	defer c.driver.unlock()
	if !r.polled {
		c.pollEventsOnce()
	}
	if c.isClosed() {
		return 0, 0, c.closedError(fmt.Sprintf("alloc %v", r.n))
	}
	if r.n > maxRequest {
		return c.outOfMemory(r, nil)
	}
	c.mu.Lock()
	var ok bool
	p, size, ok, err = c.reuseFor(r) // a request that had the lock before may have left a block
	c.mu.Unlock()
	if ok {
		return p, size, err
	}
	c.policy.collect()
	p, size, err = c.grow(r)
	if errors.Is(err, alloc.ErrOutOfMemory) && c.policy.releaseFor(r) {
		p, size, err = c.grow(r)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		p, size, err = c.retry(r)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return c.outOfMemory(r, err)
	}
	return p, size, err
}

// reuseFor is reuse for a request on the slow path: the block gets its owner. ok is false if no inactive block fits. The
// caller holds mu.
func (c *Cache) reuseFor(r request) (p alloc.Ptr, allocated alloc.Bytes, ok bool, err error) {
	i, b := c.reuse(r.n, r.size, r.stream)
	if b == nil {
		return 0, 0, false, nil
	}
	p, allocated, err = c.assign(i, b, r)
	return p, allocated, true, err
}

// grow asks the driver for memory, if the cache's limit allows more, and serves the request from
// it.
func (c *Cache) grow(r request) (alloc.Ptr, alloc.Bytes, error) {
	c.mu.Lock()
	full, held := c.streams.full(r.stream), c.stats.Reserved.Bytes.Current
	c.mu.Unlock()
	if full {
		return 0, 0, fmt.Errorf("memory for stream %#x on %s: %d streams have memory already: call Trim to give back free memory", uint64(r.stream), c.device, maxStreams)
	}
	if limit := c.policy.limit(); c.fitting.segmentSize(r.size) > limit-held {
		return 0, 0, fmt.Errorf("%w: the cache may hold %v and holds %v", alloc.ErrOutOfMemory, limit, held)
	}
	return c.growth.grow(r)
}

// retry gives all free memory back, and asks the driver once more.
func (c *Cache) retry(r request) (alloc.Ptr, alloc.Bytes, error) {
	c.mu.Lock()
	c.stats.Retries++
	c.emit(cachelock.Retry, 0, c.fitting.segmentSize(r.size), r.stream)
	c.mu.Unlock()
	_, trimErr := c.trim()
	p, size, err := c.grow(r)
	if err != nil {
		err = errors.Join(err, trimErr)
	}
	return p, size, err
}

// trim waits for pending blocks, has the device retry what it could not undo, and gives back what is free. Segments
// leave the cache before they go to the driver, so that no block of them is allocated meanwhile and the cache never
// counts memory that the driver has. The caller holds driver.
func (c *Cache) trim() (alloc.Bytes, error) {
	errs := []error{c.awaitPending()}
	if device, ok := alloc.As[capability.Reconciler](c.dev); ok {
		errs = append(errs, device.Reconcile())
	}
	freed, err := c.growth.trim()
	return freed, errors.Join(append(errs, err)...)
}

// outOfMemory counts the failure and returns its error, unless a block that fits was freed while the driver was asked.
func (c *Cache) outOfMemory(r request, cause error) (alloc.Ptr, alloc.Bytes, error) {
	info, err := c.dev.MemInfo()
	if err != nil {
		info = alloc.MemInfo{Free: -1, Total: -1}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, size, ok, err := c.reuseFor(r); ok {
		return p, size, err
	}
	c.stats.OOMs++
	c.emit(cachelock.OutOfMemory, 0, r.n, r.stream)
	stats := c.statsLocked()
	return 0, 0, &alloc.OutOfMemoryError{
		Device:          c.device,
		Requested:       r.n,
		Free:            info.Free,
		Total:           info.Total,
		Reserved:        stats.Reserved.Bytes.Current,
		Allocated:       stats.Allocated.Bytes.Current,
		LargestInactive: stats.LargestInactive,
		Err:             cause,
	}
}

// free is Free for a caller that holds mu.
func (c *Cache) free(p alloc.Ptr) error {
	i := none
	if !c.closed {
		i = c.live.remove(p)
	}
	if i == none {
		return c.freeError(p)
	}
	c.release(i, c.blocks.At(i))
	return nil
}

// release frees an allocated block that is in no table.
func (c *Cache) release(i id, b *block) {
	change(&c.stats.Requested, -b.requested(), -1)
	change(&c.stats.Allocated, -b.size, -1)
	if len(c.pending.uses) == 0 || !c.suspend(i, b) {
		c.makeInactive(i, b)
	}
}

// makeInactive makes a block inactive that was not.
func (c *Cache) makeInactive(i id, b *block) {
	c.blocks.Touch(i)
	size := b.size
	b.state = alloc.Inactive
	change(&c.stats.Inactive, size, 1-c.coalesce(i, b))
	if len(c.driver.waiting) != 0 {
		c.driver.tryAgain()
	}
}

// coalesce merges an inactive block with its inactive neighbours, lists the result, and returns the
// number of neighbours.
func (c *Cache) coalesce(i id, b *block) (neighbours int64) {
	free := c.freeList(b)
	if j := b.prev; j != none {
		if before := c.blocks.At(j); before.state == alloc.Inactive {
			c.unlist(free, j, before)
			c.blocks.Touch(j)
			c.merge(j, before, i, b)
			i, b = j, before
			neighbours++
		}
	}
	if j := b.next; j != none {
		if after := c.blocks.At(j); after.state == alloc.Inactive {
			c.unlist(free, j, after)
			c.merge(i, b, j, after)
			neighbours++
		}
	}
	c.list(free, i, b)
	return neighbours
}

// merge merges block j, which follows block i, into i. The caller has already announced the change
// of i.
func (c *Cache) merge(i id, b *block, j id, gone *block) {
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
	if b.fillsSegment() {
		c.stats.Reclaimable += b.size
	}
}

// unlist takes an inactive block out of its free list.
func (c *Cache) unlist(free freeList, i id, b *block) {
	free.remove(i, b)
	if b.fillsSegment() {
		c.stats.Reclaimable -= b.size
	}
}

// addSegment enters a segment as a single block, which is in no list yet.
func (c *Cache) addSegment(s segment, state alloc.BlockState) (first id, b *block) {
	first, b = c.blocks.Get()
	*b = block{ptr: s.ptr, size: s.size, pool: s.pool, state: state, stream: c.streams.addSegment(s.stream)}
	s.first = first
	c.segments.insert(s)
	return first, b
}

// freeError is the error of an address that cannot be freed.
func (c *Cache) freeError(p alloc.Ptr) error {
	if c.closed {
		return c.closedError(fmt.Sprintf("free %v", p))
	}
	return fmt.Errorf("free %v on %s: %w", p, c.device, c.notLiveError(p))
}

// notLiveError returns why an address is not a live block's.
func (c *Cache) notLiveError(p alloc.Ptr) error {
	i := c.blockAt(p)
	if i == none {
		return alloc.ErrUnknownPtr
	}
	b := c.blocks.At(i)
	if b.state == alloc.Inactive || b.state == alloc.Pending {
		return alloc.ErrDoubleFree
	}
	if b.state == alloc.Allocated && p == b.ptr && b.left != none {
		return cachelock.ErrOwned
	}
	return alloc.ErrUnknownPtr
}

// allocatedAt returns the allocated block at an address, with or without an owner, or none.
func (c *Cache) allocatedAt(p alloc.Ptr) id {
	if i := c.live.find(p); i != none {
		return i
	}
	if i := c.blockAt(p); i != none && c.blocks.At(i).ptr == p && c.blocks.At(i).state == alloc.Allocated {
		return i
	}
	return none
}

// blockAt returns the block that an address lies in, or none.
func (c *Cache) blockAt(p alloc.Ptr) id {
	s, ok := c.segments.at(p)
	if !ok {
		return none
	}
	i := s.first
	for _, near := range c.hints.of {
		if b := c.blocks.At(near); c.blocks.At(i).ptr < b.ptr && b.ptr <= p {
			i = near
		}
	}
	for steps := 1; c.blocks.At(i).end() <= p; steps++ {
		if i = c.blocks.At(i).next; steps%stride == 0 {
			c.hints.add(i)
		}
	}
	return i
}

// stride is how many blocks are between two hints, and how many hints there are at most.
const stride = 1 << 10

// hints are blocks from which blockAt can search, instead of from the first block of a segment, which may have a
// million. A hint stays when its block is gone: its record is then empty, or another block's. Either way a record whose
// address is in a segment is a block of that segment.
type hints struct {
	of   []id
	next int // index of the one to replace next
}

func (h *hints) add(i id) {
	if len(h.of) < stride {
		h.of = append(h.of, i)
		return
	}
	h.of[h.next] = i
	h.next = (h.next + 1) % stride
}

// change adds to a usage.
func change(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	changeGauge(&u.Bytes, bytes)
	changeGauge(&u.Count, count)
}

func changeGauge[T ~int64](g *alloc.Gauge[T], by T) {
	g.Current += by
	if by > 0 {
		if g.Total += by; g.Total < 0 {
			g.Total = math.MaxInt64
		}
		g.Peak = max(g.Peak, g.Current)
	}
}

// restore adds back what was taken off, without counting it in Total.
func restore(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	u.Bytes.Current += bytes
	u.Bytes.Peak = max(u.Bytes.Peak, u.Bytes.Current)
	u.Count.Current += count
	u.Count.Peak = max(u.Count.Peak, u.Count.Current)
}
