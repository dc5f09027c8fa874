package cache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// insert enters a segment as one inactive block, which is in no pool yet.
func (c *Cache) insert(s segment) id {
	first, b := c.blocks.Get()
	*b = block{ptr: s.ptr, size: s.size, pool: s.pool, state: alloc.Inactive, stream: c.joinStream(s.stream)}
	c.stats.Releasable += s.size
	s.first = first
	i, _ := c.search(s.ptr)
	c.segments = slices.Insert(c.segments, i, s)
	return s.first
}

// check returns an error for a segment that a driver cannot have given: without an address, or over another.
func (c *Cache) check(s segment) error {
	if s.ptr == 0 || s.end() < s.ptr {
		return fmt.Errorf("%w: %v of %v", alloc.ErrBrokenDriver, s.ptr, s.size)
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
	return fmt.Errorf("%w: %v at %v overlaps a segment of %v at %v", alloc.ErrBrokenDriver, s.size, s.ptr, held.size, held.ptr)
}

// segmentAt returns the segment that an address lies in.
func (c *Cache) segmentAt(p alloc.Ptr) (segment, bool) {
	i, same := c.search(p)
	if !same {
		i--
	}
	if i < 0 || p >= c.segments[i].end() {
		return segment{}, false
	}
	return c.segments[i], true
}

// search returns where a segment at an address is, or would be.
func (c *Cache) search(p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(c.segments, p, func(s segment, p alloc.Ptr) int { return cmp.Compare(s.ptr, p) })
}
