package cache

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// Segments iterates over the segments in address order. It walks a copy of one instant, made
// when the iteration begins, some hundred blocks at a time: no Alloc waits for the whole copy.
// The loop's body may call the cache.
func (c *Cache) Segments() iter.Seq[alloc.Segment] {
	return func(yield func(alloc.Segment) bool) {
		for _, s := range c.copySegments() {
			if !yield(s) {
				return
			}
		}
	}
}

func (c *Cache) copySegments() []alloc.Segment {
	c.mu.Lock()
	cut := locked{c}.Cut()
	c.mu.Unlock()
	return cut.Segments()
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

// appendMapped appends the segment and its blocks as others see them: each stretch of mapped
// blocks is a segment.
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
