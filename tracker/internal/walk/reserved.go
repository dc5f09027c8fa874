package walk

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// smallSegment is the size of the segments of small blocks in PyTorch's scheme.
const smallSegment = 2 * alloc.MiB

// Reserved are the segments at a place in a history, for a walk backwards from its end. They are Torn once an event does not
// fit them.
type Reserved struct {
	Spans
	Torn       bool
	Expandable bool // the allocator has expandable segments
}

// Undo reverts an event of a segment, which has that number in its history.
func (r *Reserved) Undo(past *tables.HistoryTables, seq uint64, e *tables.EventEntry) {
	switch Of(e.Action) {
	case Grow:
		r.remove(e.Ptr, e.Allocated)
	case Shrink:
		pool := "large"
		if e.Allocated <= smallSegment && !r.Expandable {
			pool = "small"
		}
		r.Add(Span{
			Ptr: e.Ptr, Size: e.Allocated, Pool: pool, Stream: tables.StreamOf(past.Streams, e.Stream), Expandable: r.Expandable, Private: past.Pool(seq),
		}, true)
	}
}

// Add adds a span. If join is set, an expandable span is joined with its neighbours.
func (r *Reserved) Add(x Span, join bool) {
	if x.Size <= 0 || x.End() < x.Ptr || r.At(x.Ptr) != nil {
		r.Torn = true
		return
	}
	if left := r.At(x.Ptr - 1); join && left != nil && joins(left, &x) {
		x.Ptr, x.Size, x.Pool, x.Private = left.Ptr, left.Size+x.Size, left.Pool, left.Private
		r.Remove(x.Ptr)
	}
	if right := r.At(x.End()); join && right != nil && right.Ptr == x.End() && joins(&x, right) {
		x.Size, x.Pool, x.Private = x.Size+right.Size, right.Pool, right.Private
		r.Remove(right.Ptr)
	}
	added := r.Insert(x)
	r.Torn = r.Torn || added.Size < x.Size
}

func joins(a, b *Span) bool {
	return a.End() == b.Ptr && a.Expandable && b.Expandable && a.Stream == b.Stream
}

// remove removes addresses, which lie in one span.
func (r *Reserved) remove(p alloc.Ptr, n alloc.Bytes) {
	span := r.At(p)
	if span == nil || n <= 0 || alloc.Bytes(span.End()-p) < n {
		r.Torn = true
		return
	}
	r.Torn = r.Torn || n < span.Size && !span.Expandable
	r.Cut(p, n)
}
