package cache

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// fromDriver serves a request for which no inactive block fits.
func (c *Cache) fromDriver(r request) (alloc.Ptr, alloc.Bytes, error) {
	if err := c.streams.check(r.stream); err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", r.n, c.device, err)
	}
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, 0, c.refuse(fmt.Sprintf("alloc %v", r.n))
	}
	if r.n > maxRequest {
		return c.outOfMemory(r, nil)
	}
	if p, size, err, found := c.again(r); found { // another miss has brought it
		return p, size, err
	}
	c.tuning.collect()
	p, size, err := c.grow(r)
	if errors.Is(err, alloc.ErrOutOfMemory) && c.tuning.spare(r) {
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

// again looks for a block that has become free since there was none.
func (c *Cache) again(r request) (p alloc.Ptr, allocated alloc.Bytes, err error, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, b := c.reuse(r.n, r.size, r.stream)
	if b == nil {
		return 0, 0, nil, false
	}
	p, allocated, err = c.handOut(i, b, r)
	return p, allocated, err, true
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
	if limit := c.tuning.limit(); c.fitting.segmentSize(r.size) > limit-held {
		return 0, 0, fmt.Errorf("%w: the cache may hold %v and holds %v", alloc.ErrOutOfMemory, limit, held)
	}
	return c.growth.grow(r)
}

// retry gives back what the cache can spare, and asks the driver once more.
func (c *Cache) retry(r request) (alloc.Ptr, alloc.Bytes, error) {
	c.mu.Lock()
	c.stats.Retries++
	c.happened(cachelock.Retry, 0, c.fitting.segmentSize(r.size), r.stream)
	c.mu.Unlock()
	_, trimErr := c.trim()
	p, size, err := c.grow(r)
	if err != nil {
		err = errors.Join(err, trimErr)
	}
	return p, size, err
}

// trim waits for pending blocks, has the device try again what it could not undo, and gives back what is free. The caller holds driver. Segments
// leave the cache before they go to the driver, so that no block of them is handed out, and the
// cache never claims memory that the driver has.
func (c *Cache) trim() (alloc.Bytes, error) {
	errs := []error{c.awaitPending()}
	if device, ok := alloc.As[ability.Settler](c.dev); ok {
		errs = append(errs, device.Settle())
	}
	given, err := c.growth.trim()
	return given, errors.Join(append(errs, err)...)
}

// outOfMemory counts the failure and gathers its numbers, unless a block that
// fits was freed while the driver was asked.
func (c *Cache) outOfMemory(r request, cause error) (alloc.Ptr, alloc.Bytes, error) {
	info, err := c.dev.MemInfo()
	if err != nil {
		info = alloc.MemInfo{Free: -1, Total: -1}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, b := c.reuse(r.n, r.size, r.stream); b != nil {
		return c.handOut(i, b, r)
	}
	c.stats.OOMs++
	c.happened(cachelock.OutOfMemory, 0, r.n, r.stream)
	stats := c.now()
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
