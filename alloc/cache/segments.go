package cache

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// segment is the cache's record of a segment. The record of its first block stays the first as long as the segment is
// in the cache: splitting leaves it the front, and coalescing merges the following blocks into it.
type segment struct {
	ptr    alloc.Ptr
	size   alloc.Bytes
	stream alloc.Stream
	first  id
	pool   pool
}

func (s segment) end() alloc.Ptr { return s.ptr + alloc.Ptr(s.size) }

// segmentList is in order of addresses.
type segmentList []segment

// check returns an error for a segment that no correct driver returns: without an address, or over another.
func (l segmentList) check(s segment) error {
	if s.ptr == 0 || s.end() < s.ptr {
		return fmt.Errorf("%w: %v of %v", alloc.ErrBrokenDriver, s.ptr, s.size)
	}
	i, same := l.search(s.ptr)
	if same || i < len(l) && l[i].ptr < s.end() {
		return overlap(s, l[i])
	}
	if i > 0 && s.ptr < l[i-1].end() {
		return overlap(s, l[i-1])
	}
	return nil
}

func overlap(s, held segment) error {
	return fmt.Errorf("%w: %v at %v overlaps a segment of %v at %v", alloc.ErrBrokenDriver, s.size, s.ptr, held.size, held.ptr)
}

// at returns the segment that an address lies in.
func (l segmentList) at(p alloc.Ptr) (segment, bool) {
	i, same := l.search(p)
	if !same {
		i--
	}
	if i < 0 || p >= l[i].end() {
		return segment{}, false
	}
	return l[i], true
}

// search returns where a segment at an address is, or would be.
func (l segmentList) search(p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(l, p, func(s segment, p alloc.Ptr) int { return cmp.Compare(s.ptr, p) })
}

func (l *segmentList) insert(s segment) {
	i, _ := l.search(s.ptr)
	*l = slices.Insert(*l, i, s)
}

func (l *segmentList) remove(p alloc.Ptr) {
	i, _ := l.search(p)
	*l = slices.Delete(*l, i, i+1)
}

// segmented is growth by segments of a fixed size, each an allocation of the driver's. A segment goes back when all of
// it is free.
type segmented struct{ c *Cache }

// useSegments makes an empty cache grow by segments of that type of memory.
func useSegments(c *Cache, cfg Config, memory alloc.Memory) {
	c.memory, c.growth = memory, segmented{c}
	c.fitting = newFitting(cfg)
	c.policy = segmentPolicy{limitPolicy{c.dev, cfg.MemoryFraction}, segmented{c}, cfg.GarbageCollection, c.fitting.maxSplit}
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
	c.emit(cachelock.SegmentAlloc, p, size, r.stream) // the event comes before any caller can get a block of the segment
	i, b := c.addSegment(s, alloc.Inactive)
	change(&c.stats.Reserved, size, 1)
	remainders := c.take(c.freeList(b), i, b, r.n, r.size)
	change(&c.stats.Inactive, size-b.size, remainders)
	return c.assign(i, b, r)
}

func (g segmented) trim() (freed alloc.Bytes, err error) {
	return g.release(g.detachFree(nil))
}

// release frees segments that have left the cache. Segments that the driver refuses to free return to the cache, and so
// do those that are not freed yet when the device panics.
func (g segmented) release(leaving []segment) (freed alloc.Bytes, err error) {
	c := g.c
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range leaving {
			g.reattach(s)
		}
	}()
	var errs []error
	for len(leaving) > 0 {
		s := leaving[0]
		err := c.dev.Free(s.ptr)
		leaving = leaving[1:]
		c.mu.Lock()
		if err == nil {
			freed += s.size
			c.emit(cachelock.SegmentFree, s.ptr, s.size, s.stream)
		} else {
			errs = append(errs, fmt.Errorf("give segment %v of %v back to %s: %w", s.ptr, s.size, c.device, err))
			g.reattach(s)
		}
		c.mu.Unlock()
	}
	return freed, errors.Join(errs...)
}

// segmentsAtOnce is how many segments are examined without releasing the lock: so many take some microseconds.
const segmentsAtOnce = 256

// detachFree removes segments that are entirely free from the cache: all of them, or only those whose blocks are in
// only. It returns them in the order in which PyTorch frees them: the large pool
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
		c.mu.Unlock() // let waiting goroutines run
		c.mu.Lock()
	}
	c.mu.Unlock()
	slices.SortFunc(detached, func(a, b segment) int {
		return cmp.Or(cmp.Compare(b.pool, a.pool), cmp.Compare(a.stream, b.stream), cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr))
	})
	return detached
}

// detach removes the one block of a segment that is entirely free.
func (g segmented) detach(s segment, b *block) {
	c := g.c
	c.unlist(c.freeList(b), s.first, b)
	c.streams.removeSegment(b.stream)
	c.blocks.Put(s.first)
	change(&c.stats.Inactive, -s.size, -1)
	change(&c.stats.Reserved, -s.size, -1)
}

// reattach undoes detach.
func (g segmented) reattach(s segment) {
	c := g.c
	i, b := c.addSegment(s, alloc.Inactive)
	c.list(c.freeList(b), i, b)
	restore(&c.stats.Inactive, s.size, 1)
	restore(&c.stats.Reserved, s.size, 1)
}

// limitPolicy is a policy with a limit only.
type limitPolicy struct {
	dev      alloc.Device
	fraction float64 // as a part of the device's memory; 0 means no limit
}

func (t limitPolicy) limit() alloc.Bytes {
	if t.fraction == 0 {
		return math.MaxInt64
	}
	info, err := t.dev.MemInfo()
	if err != nil || info.Total < 0 {
		return math.MaxInt64
	}
	if limit := t.fraction * float64(info.Total); limit < math.MaxInt64 {
		return alloc.Bytes(limit)
	}
	return math.MaxInt64
}

func (t limitPolicy) collect() {}

func (t limitPolicy) releaseFor(request) bool { return false }

// segmentPolicy is the policy of a cache of segments.
type segmentPolicy struct {
	limitPolicy
	segmented
	threshold float64     // as a part of the limit; 0 means none
	maxSplit  alloc.Bytes // that of fitting
}

// collect is PyTorch's garbage collection: when the cache holds more than the threshold, it
// gives back large segments that are entirely free until it does not, first those that have been unused for longer
// than the average.
func (t segmentPolicy) collect() {
	if t.threshold == 0 || t.fraction == 0 {
		return
	}
	limit := alloc.Bytes(t.threshold * float64(t.limit()))
	t.c.mu.Lock()
	var old map[id]bool
	if excess := t.c.stats.Reserved.Bytes.Current - limit; excess > 0 {
		old = t.oldest(excess)
	}
	t.c.mu.Unlock()
	if old != nil {
		_, _ = t.release(t.detachFree(old)) // what the driver refuses stays
	}
}

// oldest picks free blocks that fill a large segment: again and again those that are not younger
// than the average, until they have enough bytes together, or no block is left.
func (t segmentPolicy) oldest(enough alloc.Bytes) map[id]bool {
	var ids []id
	sum := 0.0
	for p := range t.c.streams.all() {
		for _, i := range t.large(p).from(0) {
			if t.c.blocks.At(i).fillsSegment() {
				ids = append(ids, i)
				sum += t.age(i)
			}
		}
	}
	picked := make(map[id]bool)
	for taken := alloc.Bytes(0); taken < enough && len(ids) > 0; {
		average := sum / float64(len(ids))
		ids = slices.DeleteFunc(ids, func(i id) bool {
			if t.age(i) < average {
				return false
			}
			picked[i] = true
			taken += t.c.blocks.At(i).size
			sum -= t.age(i)
			return true
		})
	}
	return picked
}

// age returns for how many requests of large blocks a free block has not been used.
func (t segmentPolicy) age(i id) float64 { return float64(t.c.clock - t.c.blocks.At(i).slack) }

// releaseFor gives back a stream's free blocks that are kept for large requests: the
// smallest that has the size, or if none has, the largest ones until they have it together.
// It reports whether that much was given back.
func (t segmentPolicy) releaseFor(r request) bool {
	if t.maxSplit == math.MaxInt64 || r.pool() == small {
		return false
	}
	t.c.mu.Lock()
	picked, enough := t.oversize(r)
	t.c.mu.Unlock()
	leaving := t.detachFree(picked)
	slices.Reverse(leaving) // the largest first
	_, err := t.release(leaving)
	return err == nil && enough
}

// oversize picks the blocks that releaseFor gives back, and reports whether they are large enough together.
func (t segmentPolicy) oversize(r request) (picked map[id]bool, enough bool) {
	picked = make(map[id]bool)
	p := t.c.streams.of(r.stream)
	if p == nil {
		return picked, false
	}
	size := max(r.size, t.maxSplit)
	if i := t.large(p).fit(size); i != none {
		picked[i] = true
		return picked, true
	}
	taken := alloc.Bytes(0)
	for _, i := range slices.Backward(t.large(p).from(t.maxSplit)) {
		if taken >= size {
			break
		}
		picked[i] = true
		taken += t.c.blocks.At(i).size
	}
	return picked, taken >= size
}

// cut is the cache's segments at one instant, before they are copied.
type cut struct {
	c       *Cache
	blocks  *slab.View[block]
	handles []alloc.Stream
}

// Segments copies the segments, in address order. Call it without the lock.
func (cut *cut) Segments() []alloc.Segment {
	blocks := make([]block, cut.blocks.Bound())
	var first []id // first block of each segment
	used := 0
	cut.blocks.Read(&cut.c.mu, func(at id, records []block) {
		copy(blocks[at:], records)
		for i, b := range records {
			if b.state == 0 {
				continue
			}
			used++
			if b.prev == none {
				first = append(first, at+id(i))
			}
		}
	})
	slices.SortFunc(first, func(x, y id) int { return cmp.Compare(blocks[x].ptr, blocks[y].ptr) })
	segments := make([]alloc.Segment, 0, len(first))
	public := make([]alloc.Block, 0, used)
	for _, i := range first {
		s := segment{ptr: blocks[i].ptr, pool: blocks[i].pool, stream: cut.handles[blocks[i].stream], first: i}
		segments, public = s.appendMapped(segments, public, blocks)
	}
	return segments
}

// appendMapped appends the segment and its blocks in their public form: each run of mapped blocks is a segment.
func (s segment) appendMapped(segments []alloc.Segment, public []alloc.Block, blocks []block) ([]alloc.Segment, []alloc.Block) {
	run := alloc.Segment{Ptr: s.ptr, Pool: s.pool.String(), Stream: s.stream}
	first := len(public)
	end := func() {
		if len(public) > first {
			run.Blocks = slices.Clip(public[first:])
			segments = append(segments, run)
		}
	}
	for i := s.first; i != none; i = blocks[i].next {
		b := &blocks[i]
		if b.state == unmapped {
			end()
			run, first = alloc.Segment{Ptr: b.end(), Pool: s.pool.String(), Stream: s.stream}, len(public)
			continue
		}
		run.Size += b.size
		public = append(public, alloc.Block{Ptr: b.ptr, Size: b.size, Requested: b.requested(), State: b.state})
	}
	end()
	return segments, public
}
