package rewind

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// segments tiles the spans with the live blocks, whose addresses are sorted; nil if they
// do not fit.
func (w *rewind) segments(live []alloc.Ptr) []alloc.Segment {
	if w.reserved.Torn {
		return nil
	}
	out := []alloc.Segment{}
	for s := range w.reserved.All {
		for len(live) > 0 && live[0] < s.Ptr {
			if !w.live[live[0]].Foreign {
				return nil
			}
			live = live[1:]
		}
		n, _ := slices.BinarySearch(live, s.End())
		blocks := w.tile(s, live[:n])
		live = live[n:]
		segment := alloc.Segment{Ptr: s.Ptr, Size: s.Size, Pool: s.Pool, Stream: s.Stream, Expandable: s.Expandable, Private: s.Private, Blocks: blocks}
		if segment.Check() != nil {
			return nil
		}
		out = append(out, segment)
	}
	for _, p := range live {
		if len(out) > 0 && !w.live[p].Foreign {
			return nil
		}
	}
	return out
}

// maxRemainder is the largest unsplit remainder: the allocator splits a large block if more than this is left beyond the
// request.
const maxRemainder = 1 * alloc.MiB

// bound sets the ends of large blocks from later events. The history has the requested bytes, not
// the unsplit remainder. In a large segment no free block is that small, so an
// allocation this close behind a block begins where the block ends. The buffers are sorted; after
// has the events that follow the state.
func (w *rewind) bound(buffers []alloc.Ptr, after []tables.EventEntry) {
	done := make(map[alloc.Ptr]bool) // its end is known, or it is freed
	for i := range after {
		e := &after[i]
		switch walk.Of(e.Action) {
		case walk.Begin:
			at, _ := slices.BinarySearch(buffers, e.Ptr)
			if at == 0 || done[buffers[at-1]] {
				continue
			}
			p := buffers[at-1]
			b, in := w.live[p], w.reserved.At(p)
			size := alloc.Bytes(e.Ptr - p)
			if !b.Foreign && large(in) && e.Ptr < in.End() && size >= b.Allocated && size <= b.Allocated+maxRemainder {
				b.Allocated = size
				w.live[p], done[p] = b, true
			}
		case walk.End, walk.Complete:
			done[e.Ptr] = true
		}
	}
}

// large reports whether blocks of a segment can have an unsplit remainder.
func large(s *walk.Span) bool { return s != nil && s.Pool == "large" && !s.Expandable }

// tile returns the blocks of a span: the live ones, and the free ones between them.
func (w *rewind) tile(s *walk.Span, live []alloc.Ptr) []alloc.Block {
	blocks := make([]alloc.Block, 0, 2*len(live)+1)
	at := s.Ptr
	hole := func(to alloc.Ptr) {
		size, last := alloc.Bytes(to-at), len(blocks)-1
		if size <= 0 {
			return
		}
		if size > maxRemainder || !large(s) || last < 0 || blocks[last].State == alloc.Inactive {
			blocks = append(blocks, alloc.Block{Ptr: at, Size: size, State: alloc.Inactive})
			return
		}
		blocks[last].Size += size
		if b := w.live[blocks[last].Ptr]; b.tensor != nil {
			b.Allocated += size
			w.live[blocks[last].Ptr] = b
		}
	}
	for _, p := range live {
		b := w.live[p]
		if b.Foreign {
			continue
		}
		hole(p)
		state := alloc.Allocated
		if b.pending {
			state = alloc.Pending
		}
		blocks = append(blocks, alloc.Block{Ptr: p, Size: b.Allocated, Requested: b.requested, State: state})
		at = p + alloc.Ptr(b.Allocated)
	}
	hole(s.End())
	return blocks
}
