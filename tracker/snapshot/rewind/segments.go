package rewind

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// reserved are the segments at the place in the history. They are torn once an event does not fit them.
type reserved struct {
	walk.Spans
	torn bool
}

// add adds a span. If join is set, an expandable span is joined with its neighbours.
func (r *reserved) add(x walk.Span, join bool) {
	if x.Size <= 0 || x.End() < x.Ptr || r.At(x.Ptr) != nil {
		r.torn = true
		return
	}
	if left := r.At(x.Ptr - 1); join && left != nil && joins(left, &x) {
		x.Ptr, x.Size, x.Pool, x.Private = left.Ptr, left.Size+x.Size, left.Pool, left.Private
		r.Remove(x.Ptr)
	}
	if right := r.At(x.End()); join && right != nil && right.Ptr == x.End() && joins(&x, right) {
		x.Size, x.Pool = x.Size+right.Size, right.Pool
		r.Remove(right.Ptr)
	}
	added := r.Insert(x)
	r.torn = r.torn || added.Size < x.Size
}

func joins(a, b *walk.Span) bool {
	return a.End() == b.Ptr && a.Expandable && b.Expandable && a.Stream == b.Stream
}

// remove removes addresses, which lie in one span.
func (r *reserved) remove(p alloc.Ptr, n alloc.Bytes) {
	span := r.At(p)
	if span == nil || n <= 0 || alloc.Bytes(span.End()-p) < n {
		r.torn = true
		return
	}
	r.torn = r.torn || n < span.Size && !span.Expandable
	r.Cut(p, n)
}

// segments tiles the spans with the live blocks, whose addresses are sorted; nil if they
// do not fit.
func (w *rewind) segments(live []alloc.Ptr) []alloc.Segment {
	if w.reserved.torn {
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
