package cache

import (
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
	pool   alloc.Pool
}

// appendMapped appends the segment and its blocks as others see them: each stretch of mapped
// blocks is a segment.
func (s segment) appendMapped(segments []alloc.Segment, public []alloc.Block, blocks []block) ([]alloc.Segment, []alloc.Block) {
	run := alloc.Segment{Ptr: s.ptr, Pool: s.pool, Stream: s.stream}
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
			run, first = alloc.Segment{Ptr: b.end(), Pool: s.pool, Stream: s.stream}, len(public)
			continue
		}
		run.Size += b.size
		public = append(public, alloc.Block{Ptr: b.ptr, Size: b.size, Requested: b.requested(), State: b.state})
	}
	end()
	return segments, public
}

func (s segment) end() alloc.Ptr { return s.ptr + alloc.Ptr(s.size) }
