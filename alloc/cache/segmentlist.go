package cache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// segment is what the cache keeps of one. The record of its first block stays
// that for as long as the segment is in the cache: splitting leaves it the
// front, and it absorbs what it is joined with.
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

// check returns an error for a segment that a driver cannot have given: without an address, or over another.
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
