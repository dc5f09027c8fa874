package cache

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// fromDriver allocates from memory that the driver is asked for; enter may be nil.
func (c *Cache) fromDriver(n alloc.Bytes, on alloc.Stream, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, 0, c.refuse(fmt.Sprintf("alloc %v", n))
	}
	if n > maxRequest {
		return c.outOfMemory(n, on, enter, nil)
	}
	c.mu.Lock()
	if b := c.recheck(n, on); b != nil { // another miss may have brought it
		defer c.mu.Unlock()
		return c.handOut(b, enter)
	}
	c.mu.Unlock()
	if c.tuning != nil {
		c.tuning.collectGarbage()
	}
	p, size, err := c.grow(n, on, enter)
	if errors.Is(err, alloc.ErrOutOfMemory) && c.tuning != nil && c.tuning.giveBackLarge(c.blockSize(n), on) {
		p, size, err = c.grow(n, on, enter)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		p, size, err = c.retry(n, on, enter)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return c.outOfMemory(n, on, enter, err)
	}
	return p, size, err
}

// grow asks the driver for memory and allocates from it.
func (c *Cache) grow(n alloc.Bytes, on alloc.Stream, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	size := segmentSize(c.blockSize(n))
	c.mu.Lock()
	err := c.checkStream(on)
	c.mu.Unlock()
	if err != nil {
		return 0, 0, err
	}
	if c.tuning != nil {
		held, limit := c.Stats().Reserved.Bytes.Current, c.tuning.limit()
		if size > limit-held {
			return 0, 0, fmt.Errorf("%w: the cache may hold %v and holds %v", alloc.ErrOutOfMemory, limit, held)
		}
		if c.tuning.expandable != nil {
			p, allocated, err := c.tuning.expandable.alloc(n, c.blockSize(n), on, enter)
			if err == nil {
				return p, allocated, nil
			}
			if !c.tuning.without(err) {
				return 0, 0, fmt.Errorf("alloc %v on %s: %w", n, c.device, err)
			}
		}
	}
	p, err := c.dev.Alloc(size)
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: new segment of %v: %w", n, c.device, size, err)
	}
	return c.fromSegment(p, size, n, on, enter)
}

// retry waits for pending blocks, gives back what the cache can spare, and asks the driver once more.
func (c *Cache) retry(n alloc.Bytes, on alloc.Stream, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	c.mu.Lock()
	c.stats.Retries++
	c.happened(cachelock.Retry, 0, segmentSize(c.blockSize(n)), on)
	c.mu.Unlock()
	_, emptyErr := c.giveBack()
	p, size, err := c.grow(n, on, enter)
	if err != nil {
		err = errors.Join(err, emptyErr)
	}
	return p, size, err
}

// fromSegment takes a new segment in and allocates from its front.
func (c *Cache) fromSegment(p alloc.Ptr, size, n alloc.Bytes, on alloc.Stream, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	need := c.blockSize(n)
	s := segment{ptr: p, size: size, pool: poolOf(need), stream: on}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(s); err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", n, c.device, err)
	}
	c.happened(cachelock.SegmentAlloc, p, size, on) // before anybody can have a block of it
	i := c.insert(s)
	usageAdd(&c.stats.Reserved, size, 1)
	b, remainders := c.take(i, n, need, noOwner)
	usageAdd(&c.stats.Inactive, size-b.size, remainders)
	return c.handOut(b, enter)
}

// outOfMemory counts the failure and gathers its numbers, unless a block that
// fits was freed while the driver was asked.
func (c *Cache) outOfMemory(n alloc.Bytes, on alloc.Stream, enter cachelock.Enter, cause error) (alloc.Ptr, alloc.Bytes, error) {
	info, err := c.dev.MemInfo()
	if err != nil {
		info = alloc.MemInfo{Free: -1, Total: -1}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.recheck(n, on); b != nil {
		return c.handOut(b, enter)
	}
	c.stats.OOMs++
	c.happened(cachelock.OutOfMemory, 0, n, on)
	stats := c.now()
	return 0, 0, &alloc.OutOfMemoryError{
		Device:          c.device,
		Requested:       n,
		Free:            info.Free,
		Total:           info.Total,
		Reserved:        stats.Reserved.Bytes.Current,
		Allocated:       stats.Allocated.Bytes.Current,
		LargestInactive: stats.LargestInactive,
		Err:             cause,
	}
}

// Trim waits until no block is pending, gives every free segment back to the driver, and
// returns how much that was. Segments that the driver refuses stay in the cache, and its
// errors are joined. The error of a closed cache is ErrClosed.
func (c *Cache) Trim() (alloc.Bytes, error) {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, c.refuse("empty")
	}
	return c.giveBack()
}

// giveBack is Trim for a caller that holds driver. The segments leave the cache first,
// so that nobody is handed a block of them, and so that the cache never claims
// what the driver has.
func (c *Cache) giveBack() (given alloc.Bytes, err error) {
	pendingErr := c.awaitPending()
	if c.expands() {
		given, err = c.tuning.expandable.giveBack()
	} else {
		given, err = c.give(c.detachFree(func(id) bool { return true }))
	}
	return given, errors.Join(pendingErr, err)
}

// Close waits until no block is pending, gives every free segment back to the driver, and
// closes the cache. After it Alloc, Free, RecordStream, Trim and Close return ErrClosed;
// Stats and Segments still show what is left. The device stays open.
//
// A segment with a block in use is not given back, because work may be queued on it: an error
// counts such blocks. It is joined with the driver's.
func (c *Cache) Close() error {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return c.refuse("close")
	}
	c.mu.Lock()
	c.closed = true
	inUse := c.stats.Allocated
	c.mu.Unlock()
	_, err := c.giveBack()
	if c.expands() {
		err = errors.Join(err, c.tuning.expandable.release())
	}
	if inUse.Count.Current > 0 {
		err = errors.Join(fmt.Errorf("close cache on %s: blocks still in use: %d, of %v together: free them first", c.device, inUse.Count.Current, inUse.Bytes.Current), err)
	}
	return err
}
