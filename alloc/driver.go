package alloc

import (
	"errors"
	"fmt"
	"slices"
)

// ErrBrokenDriver is the error of a driver that gave memory which cannot be: no
// address, or memory that it had given already. That memory is left alone.
var ErrBrokenDriver = errors.New("the driver gave memory that cannot be")

// InUseError says that a cache was closed with blocks in callers' hands.
type InUseError struct {
	Device string // name and ordinal
	Blocks int64
	Bytes  Bytes // allocated
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("close cache on %s: blocks still in use: %d, of %v together: free them first", e.Device, e.Blocks, e.Bytes)
}

// fromDriver allocates from a new segment; enter may be nil.
func (c *Cache) fromDriver(n Bytes, enter enter) (Ptr, Bytes, error) {
	defer c.events.flush(&c.mu)
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, 0, c.refuse(fmt.Sprintf("alloc %v", n))
	}
	if n > maxRequest {
		return c.outOfMemory(n, enter, nil)
	}
	c.mu.Lock()
	if b := c.fromCache(n, noOwner); b != nil { // another miss may have brought it
		defer c.mu.Unlock()
		return c.handOut(b, enter)
	}
	c.mu.Unlock()

	size := segmentSize(blockSize(n))
	segment, err := c.dev.Alloc(size)
	if errors.Is(err, ErrOutOfMemory) {
		segment, err = c.retry(size)
	}
	if errors.Is(err, ErrOutOfMemory) {
		return c.outOfMemory(n, enter, err)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: new segment of %v: %w", n, c.device, size, err)
	}
	return c.fromSegment(segment, size, n, enter)
}

// retry gives back what the cache can spare and asks the driver once more.
func (c *Cache) retry(size Bytes) (Ptr, error) {
	c.mu.Lock()
	c.stats.Retries++
	c.events.add(SegmentRetry, 0, size)
	c.mu.Unlock()
	_, emptyErr := c.giveBack()
	p, err := c.dev.Alloc(size)
	if err != nil {
		err = errors.Join(err, emptyErr)
	}
	return p, err
}

// fromSegment takes a new segment in and allocates from its front.
func (c *Cache) fromSegment(p Ptr, size, n Bytes, enter enter) (Ptr, Bytes, error) {
	s := segment{ptr: p, size: size, pool: poolOf(blockSize(n))}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(s); err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", n, c.device, err)
	}
	c.events.add(SegmentAlloc, p, size) // before anybody can have a block of it
	i := c.insert(s)
	c.stats.Reserved.add(size, 1)
	b, remainders := c.take(i, n, noOwner)
	c.stats.Inactive.add(size-b.size, remainders)
	return c.handOut(b, enter)
}

// outOfMemory counts the failure and gathers its numbers, unless a block that
// fits was freed while the driver was asked.
func (c *Cache) outOfMemory(n Bytes, enter enter, cause error) (Ptr, Bytes, error) {
	info, err := c.dev.MemInfo()
	if err != nil {
		info = MemInfo{Free: -1, Total: -1}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.fromCache(n, noOwner); b != nil {
		return c.handOut(b, enter)
	}
	c.stats.OOMs++
	c.events.add(SegmentOOM, 0, n)
	stats := c.now()
	return 0, 0, &OutOfMemoryError{
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

// Empty gives every segment that is wholly free back to the driver, and returns
// how much that was. Segments that the driver refuses stay in the cache, and the
// error joins what it said. A cache that is closed is ErrClosed.
func (c *Cache) Empty() (Bytes, error) {
	defer c.events.flush(&c.mu)
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, c.refuse("empty")
	}
	return c.giveBack()
}

// giveBack is Empty for who holds driver. The segments leave the cache first,
// so that nobody is handed a block of them, and so that the cache never claims
// what the driver has.
func (c *Cache) giveBack() (given Bytes, err error) {
	c.mu.Lock()
	leaving := c.detachFree()
	c.mu.Unlock()
	var errs []error
	for _, s := range leaving {
		if err := c.dev.Free(s.ptr); err != nil {
			errs = append(errs, fmt.Errorf("give segment %v of %v back to %s: %w", s.ptr, s.size, c.device, err))
			c.mu.Lock()
			c.reattach(s)
			c.mu.Unlock()
			continue
		}
		given += s.size
		c.mu.Lock()
		c.events.add(SegmentFree, s.ptr, s.size)
		c.mu.Unlock()
	}
	return given, errors.Join(errs...)
}

// detachFree takes the segments that are wholly free out of the cache.
func (c *Cache) detachFree() (detached []segment) {
	c.segments = slices.DeleteFunc(c.segments, func(s segment) bool {
		b := c.blocks.At(s.first)
		if b.state != Inactive || b.next != none {
			return false
		}
		c.unpool(s.first, b.pool)
		c.blocks.Put(s.first)
		c.stats.Releasable -= s.size
		c.stats.Inactive.add(-s.size, -1)
		c.stats.Reserved.add(-s.size, -1)
		detached = append(detached, s)
		return true
	})
	return detached
}

// reattach undoes detachFree for one segment.
func (c *Cache) reattach(s segment) {
	i := c.insert(s)
	c.pool(i, c.blocks.At(i))
	c.stats.Inactive.restore(s.size, 1)
	c.stats.Reserved.restore(s.size, 1)
}

// Close gives back every segment that is wholly free, and ends the cache: Alloc,
// Free, Empty and Close are ErrClosed after it. Stats and Segments still tell
// what is left. The device stays open.
//
// A segment with a block in use is left with the driver, since work may be
// queued on it; an *InUseError tells of such blocks. That error and the driver's are
// joined.
func (c *Cache) Close() error {
	defer c.events.flush(&c.mu)
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
	if inUse.Count.Current > 0 {
		err = errors.Join(&InUseError{Device: c.device, Blocks: inUse.Count.Current, Bytes: inUse.Bytes.Current}, err)
	}
	return err
}
