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

// SegmentAction is what happened between a Cache and its driver.
type SegmentAction uint8

// The actions. The first two and the last have the names that PyTorch's
// snapshots use.
const (
	SegmentAlloc SegmentAction = iota + 1 // "segment_alloc": no block of it is handed out yet
	SegmentFree                           // "segment_free": the driver has it back
	SegmentRetry                          // "retry": out of memory; cached segments go back now
	SegmentOOM                            // "oom": still out of memory
)

// String returns the action's name.
func (a SegmentAction) String() string {
	names := [...]string{SegmentAlloc: "segment_alloc", SegmentFree: "segment_free", SegmentRetry: "retry", SegmentOOM: "oom"}
	if a == 0 || int(a) >= len(names) {
		return fmt.Sprintf("SegmentAction(%d)", uint8(a))
	}
	return names[a]
}

// SegmentEvent is told to CacheConfig.OnSegment.
type SegmentEvent struct {
	Action SegmentAction
	Ptr    Ptr   // of the segment; 0 for SegmentRetry and SegmentOOM
	Size   Bytes // of the segment, or the segment asked for; the request's for SegmentOOM
}

func (c *Cache) tell(action SegmentAction, p Ptr, size Bytes) {
	if c.onSegment != nil {
		c.onSegment(SegmentEvent{Action: action, Ptr: p, Size: size})
	}
}

// fromDriver allocates from a new segment.
func (c *Cache) fromDriver(n Bytes) (Ptr, Bytes, error) {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, 0, c.refuse(fmt.Sprintf("alloc %v", n))
	}
	if n > maxRequest {
		return c.outOfMemory(n, nil)
	}
	c.mu.Lock()
	p, allocated, ok := c.fromCache(n) // another miss may have brought it
	c.mu.Unlock()
	if ok {
		return p, allocated, nil
	}

	size := segmentSize(blockSize(n))
	segment, err := c.dev.Alloc(size)
	if errors.Is(err, ErrOutOfMemory) {
		segment, err = c.retry(size)
	}
	if errors.Is(err, ErrOutOfMemory) {
		return c.outOfMemory(n, err)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: new segment of %v: %w", n, c.device(), size, err)
	}
	return c.fromSegment(segment, size, n)
}

// retry gives back what the cache can spare and asks the driver once more.
func (c *Cache) retry(size Bytes) (Ptr, error) {
	c.mu.Lock()
	c.stats.Retries++
	c.mu.Unlock()
	c.tell(SegmentRetry, 0, size)
	_, emptyErr := c.giveBack()
	p, err := c.dev.Alloc(size)
	if err != nil {
		err = errors.Join(err, emptyErr)
	}
	return p, err
}

// fromSegment takes a new segment in and allocates from its front.
func (c *Cache) fromSegment(p Ptr, size, n Bytes) (Ptr, Bytes, error) {
	s := segment{ptr: p, size: size, pool: poolOf(blockSize(n))}
	c.mu.Lock()
	err := c.check(s)
	c.mu.Unlock()
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", n, c.device(), err)
	}
	c.tell(SegmentAlloc, p, size) // before anybody can have a block of it

	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.insert(s)
	c.stats.Reserved.add(size, 1)
	b, remainders := c.take(i, n)
	c.stats.Inactive.add(size-b.size, remainders)
	return b.ptr, b.size, nil
}

// outOfMemory counts the failure and gathers its numbers, unless a block that
// fits was freed while the driver was asked.
func (c *Cache) outOfMemory(n Bytes, cause error) (Ptr, Bytes, error) {
	info, err := c.dev.MemInfo()
	if err != nil {
		info = MemInfo{Free: -1, Total: -1}
	}
	c.mu.Lock()
	p, allocated, ok := c.fromCache(n)
	if !ok {
		c.stats.OOMs++
	}
	stats := c.now()
	c.mu.Unlock()
	if ok {
		return p, allocated, nil
	}
	c.tell(SegmentOOM, 0, n)
	return 0, 0, &OutOfMemoryError{
		Device:          c.device(),
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
			errs = append(errs, fmt.Errorf("give segment %v of %v back to %s: %w", s.ptr, s.size, c.device(), err))
			c.mu.Lock()
			c.reattach(s)
			c.mu.Unlock()
			continue
		}
		given += s.size
		c.tell(SegmentFree, s.ptr, s.size)
	}
	return given, errors.Join(errs...)
}

// detachFree takes the segments that are wholly free out of the cache.
func (c *Cache) detachFree() (detached []segment) {
	c.segments = slices.DeleteFunc(c.segments, func(s segment) bool {
		b := c.blocks.at(s.first)
		if b.state != Inactive || b.next != none {
			return false
		}
		c.unpool(s.first, b.pool)
		c.blocks.put(s.first)
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
	c.pool(i, c.blocks.at(i))
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
		err = errors.Join(&InUseError{Device: c.device(), Blocks: inUse.Count.Current, Bytes: inUse.Bytes.Current}, err)
	}
	return err
}
