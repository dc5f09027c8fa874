package cache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// give gives segments back to the driver that have left the cache; those that it refuses
// return to the cache.
func (c *Cache) give(leaving []segment) (given alloc.Bytes, err error) {
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
		c.happened(cachelock.SegmentFree, s.ptr, s.size, s.stream)
		c.mu.Unlock()
	}
	return given, errors.Join(errs...)
}

// segmentsAtOnce is how many segments are looked at without releasing the lock.
const segmentsAtOnce = 256

// detachFree takes segments that are wholly free out of the cache, those for whose block leaves returns true,
// and returns them in the order in which PyTorch frees them: those of the large pool first, by stream, size
// and address. The caller holds driver, which keeps the list of segments as it is between one stretch of it
// and the next.
func (c *Cache) detachFree(leaves func(id) bool) (detached []segment) {
	c.mu.Lock()
	for to := len(c.segments); to > 0; {
		from := max(0, to-segmentsAtOnce)
		stay := slices.DeleteFunc(c.segments[from:to], func(s segment) bool {
			b := c.blocks.At(s.first)
			if b.state != alloc.Inactive || b.next != none || !leaves(s.first) {
				return false
			}
			c.detach(s, b)
			detached = append(detached, s)
			return true
		})
		c.segments = slices.Delete(c.segments, from+len(stay), to)
		to = from
		c.mu.Unlock() // others have waited
		c.mu.Lock()
	}
	c.mu.Unlock()
	slices.SortFunc(detached, func(a, b segment) int {
		return cmp.Or(cmp.Compare(b.pool, a.pool), cmp.Compare(a.stream, b.stream), cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr))
	})
	return detached
}

// detach takes the block of a segment that is wholly free out.
func (c *Cache) detach(s segment, b *block) {
	c.unpool(c.poolsAt(b.stream), s.first, b.pool)
	c.leaveStream(b.stream)
	c.blocks.Put(s.first)
	c.stats.Releasable -= s.size
	usageAdd(&c.stats.Inactive, -s.size, -1)
	usageAdd(&c.stats.Reserved, -s.size, -1)
}

// reattach undoes detachFree for one segment.
func (c *Cache) reattach(s segment) {
	i := c.insert(s)
	b := c.blocks.At(i)
	c.pool(c.poolsAt(b.stream), i, b)
	usageRestore(&c.stats.Inactive, s.size, 1)
	usageRestore(&c.stats.Reserved, s.size, 1)
}
