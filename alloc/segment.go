package alloc

import (
	"iter"
	"slices"
)

// Segment is one allocation of a Cache from its driver, as it was at one
// instant.
type Segment struct {
	Ptr    Ptr
	Size   Bytes
	Pool   Pool
	Stream Stream // that its blocks are for
	// Expandable says that it is the mapped part of a range of addresses, which can
	// grow; see CacheConfig.
	Expandable bool
	// Private names the private pool that the segment is of, such as that of a CUDA graph in a
	// recording of PyTorch: only requests of that pool get its memory, and emptying the cache
	// leaves it. It is "" for the default pool, and of a Cache, which has no other.
	Private string
	blocks  []Block
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

// segment is what the cache keeps of one. The record of its first block stays
// that for as long as the segment is in the cache: splitting leaves it the
// front, and it absorbs what it is joined with.
type segment struct {
	ptr    Ptr
	size   Bytes
	stream Stream
	first  id
	pool   Pool
}

// appendMapped appends the segment and its blocks as others see them: each stretch of mapped
// blocks is a segment.
func (s segment) appendMapped(segments []Segment, public []Block, blocks []block) ([]Segment, []Block) {
	run := Segment{Ptr: s.ptr, Pool: s.pool, Stream: s.stream}
	first := len(public)
	end := func() {
		if len(public) > first {
			run.blocks = slices.Clip(public[first:])
			segments = append(segments, run)
		}
	}
	for i := s.first; i != none; i = blocks[i].next {
		b := &blocks[i]
		if b.state == unmapped {
			end()
			run, first = Segment{Ptr: b.end(), Pool: s.pool, Stream: s.stream}, len(public)
			continue
		}
		run.Size += b.size
		public = append(public, Block{Ptr: b.ptr, Size: b.size, Requested: b.requested(), State: b.state})
	}
	end()
	return segments, public
}

func (s segment) end() Ptr { return s.ptr + Ptr(s.size) }
