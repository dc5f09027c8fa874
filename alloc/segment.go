package alloc

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Segment is one allocation of a Cache from its driver, as it was at one
// instant.
type Segment struct {
	Ptr    Ptr
	Size   Bytes
	Pool   Pool
	blocks []Block
}

// Blocks iterates over the segment's blocks, which tile it, in address order.
func (s Segment) Blocks() iter.Seq[Block] { return slices.Values(s.blocks) }

// Block is a piece of a Segment.
type Block struct {
	Ptr       Ptr
	Size      Bytes
	Requested Bytes // 0 for an inactive block
	State     BlockState
}

// Segments iterates over the segments in address order. It walks a copy, made
// when the iteration begins, and all of it is of one instant. Nobody waits for
// the whole copy: it is made a thousand blocks at a time. The loop's body may
// call the cache.
func (c *Cache) Segments() iter.Seq[Segment] {
	return func(yield func(Segment) bool) {
		for _, s := range c.copySegments() {
			if !yield(s) {
				return
			}
		}
	}
}

func (c *Cache) copySegments() []Segment {
	c.mu.Lock()
	cut := c.Locked().Cut()
	c.mu.Unlock()
	return cut.Segments()
}

// segment is what the cache keeps of one. The record of its first block stays
// that for as long as the segment is in the cache: splitting leaves it the
// front, and it absorbs what it is joined with.
type segment struct {
	ptr   Ptr
	size  Bytes
	first id
	pool  Pool
}

func (s segment) end() Ptr { return s.ptr + Ptr(s.size) }

// insert enters a segment as one inactive block, which is in no pool yet.
func (c *Cache) insert(s segment) id {
	first, b := c.blocks.Get()
	*b = block{ptr: s.ptr, size: s.size, pool: s.pool, state: Inactive}
	c.stats.Releasable += s.size
	s.first = first
	i, _ := c.search(s.ptr)
	c.segments = slices.Insert(c.segments, i, s)
	return s.first
}

// check says whether a segment from the driver can be.
func (c *Cache) check(s segment) error {
	if s.ptr == 0 || s.end() < s.ptr {
		return fmt.Errorf("%w: %v of %v", ErrBrokenDriver, s.ptr, s.size)
	}
	i, same := c.search(s.ptr)
	if same || i < len(c.segments) && c.segments[i].ptr < s.end() {
		return overlap(s, c.segments[i])
	}
	if i > 0 && s.ptr < c.segments[i-1].end() {
		return overlap(s, c.segments[i-1])
	}
	return nil
}

func overlap(s, held segment) error {
	return fmt.Errorf("%w: %v at %v overlaps a segment of %v at %v", ErrBrokenDriver, s.size, s.ptr, held.size, held.ptr)
}

// segmentAt returns the segment that an address lies in.
func (c *Cache) segmentAt(p Ptr) (segment, bool) {
	i, same := c.search(p)
	if !same {
		i--
	}
	if i < 0 || p >= c.segments[i].end() {
		return segment{}, false
	}
	return c.segments[i], true
}

// search returns where a segment at an address is, or would stand.
func (c *Cache) search(p Ptr) (int, bool) {
	return slices.BinarySearchFunc(c.segments, p, func(s segment, p Ptr) int { return cmp.Compare(s.ptr, p) })
}
