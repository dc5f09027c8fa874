package cache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// segmented is growth by segments of a fixed size, each an allocation of the driver's. One goes back when it is
// wholly free.
type segmented struct{ c *Cache }

// useSegments makes an empty cache grow by segments of that type of memory.
func (c *Cache) useSegments(cfg Config, memory alloc.Memory) {
	c.memory, c.growth = memory, segmented{c}
	c.fitting = newFitting(cfg)
	c.tuning = tuned{limited{c.dev, cfg.MemoryFraction}, segmented{c}, cfg.GarbageCollection, c.fitting.maxSplit}
	c.streams = newStreams(segmented{c}.freeLists)
}

func (g segmented) freeLists() [2]freeList {
	blocks := &g.c.blocks
	return [...]freeList{small: &bins{blocks: blocks}, large: &tree{blocks: blocks}}
}

// large returns the free list of large blocks.
func (g segmented) large(p *pools) *tree { return p.free[large].(*tree) }

func (g segmented) close() error { return nil }

// grow asks the driver for a segment and serves the request from its front.
func (g segmented) grow(r request) (alloc.Ptr, alloc.Bytes, error) {
	c, size := g.c, g.c.fitting.segmentSize(r.size)
	p, err := c.dev.Alloc(size)
	if err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: new segment of %v: %w", r.n, c.device, size, err)
	}
	s := segment{ptr: p, size: size, pool: r.pool(), stream: r.stream}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.segments.check(s); err != nil {
		return 0, 0, fmt.Errorf("alloc %v on %s: %w", r.n, c.device, err)
	}
	c.happened(cachelock.SegmentAlloc, p, size, r.stream) // the event comes before anybody can get a block of the segment
	i, b := c.insert(s, alloc.Inactive)
	change(&c.stats.Reserved, size, 1)
	remainders := c.take(c.freeList(b), i, b, r.n, r.size)
	change(&c.stats.Inactive, size-b.size, remainders)
	return c.handOut(i, b, r)
}

func (g segmented) trim() (given alloc.Bytes, err error) {
	return g.give(g.detachFree(nil))
}

// give gives segments that have left the cache back to the driver. Segments that the driver refuses
// return to the cache.
func (g segmented) give(leaving []segment) (given alloc.Bytes, err error) {
	c := g.c
	var errs []error
	for _, s := range leaving {
		err := c.dev.Free(s.ptr)
		c.mu.Lock()
		if err == nil {
			given += s.size
			c.happened(cachelock.SegmentFree, s.ptr, s.size, s.stream)
		} else {
			errs = append(errs, fmt.Errorf("give segment %v of %v back to %s: %w", s.ptr, s.size, c.device, err))
			g.reattach(s)
		}
		c.mu.Unlock()
	}
	return given, errors.Join(errs...)
}

// segmentsAtOnce is how many segments are looked at without releasing the lock.
const segmentsAtOnce = 256

// detachFree takes segments that are wholly free out of the cache: all of them, or only those whose
// blocks are in only. It returns them in the order in which PyTorch frees them: the large pool
// first, then by stream, size and address. The caller holds driver, so the list of segments cannot
// change while mu is released in between.
func (g segmented) detachFree(only map[id]bool) (detached []segment) {
	c := g.c
	c.mu.Lock()
	for to := len(c.segments); to > 0; {
		from := max(0, to-segmentsAtOnce)
		stay := slices.DeleteFunc(c.segments[from:to], func(s segment) bool {
			b := c.blocks.At(s.first)
			if b.state != alloc.Inactive || b.next != none || only != nil && !only[s.first] {
				return false
			}
			g.detach(s, b)
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
func (g segmented) detach(s segment, b *block) {
	c := g.c
	c.unlist(c.freeList(b), s.first, b)
	c.streams.leave(b.stream)
	c.blocks.Put(s.first)
	change(&c.stats.Inactive, -s.size, -1)
	change(&c.stats.Reserved, -s.size, -1)
}

// reattach undoes detach.
func (g segmented) reattach(s segment) {
	c := g.c
	i, b := c.insert(s, alloc.Inactive)
	c.list(c.freeList(b), i, b)
	restore(&c.stats.Inactive, s.size, 1)
	restore(&c.stats.Reserved, s.size, 1)
}
