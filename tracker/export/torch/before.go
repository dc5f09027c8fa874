package torch

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// before is what is found by going back from the end of a history: what was live before the first
// event, and which frees left memory pending. PyTorch has two events for a free, its request and
// its completion. A tracker has the event Freed, and FreeCompleted only if that came later.
type before struct {
	buffers walk.Back[piece]
	late    map[uint64]bool              // frees that completed later, by the number of their event Freed
	left    map[alloc.Ptr]snapshot.Event // frees that are not completed at the end
}

// piece is the memory of a buffer that an event told of.
type piece struct {
	ptr    alloc.Ptr
	size   alloc.Bytes
	stream alloc.Stream
	told   uint64 // the number of the event
}

// atEnd is piece.told of the blocks that are pending at the end.
const atEnd = math.MaxUint64

// goBack goes back over a history. It leaves the segments before the first event in open.
func (p *part) goBack() {
	s := p.dump.Snapshot
	for i := range s.Segments {
		if x := spanOf(&s.Segments[i]); p.open.At(x.Ptr) == nil {
			p.open.Insert(x)
		}
	}
	p.before = before{make(walk.Back[piece]), make(map[uint64]bool), make(map[alloc.Ptr]snapshot.Event)}
	for ptr := range pendingIn(s) {
		p.buffers.Enter(address(ptr), walk.Pending, piece{told: atEnd})
	}
	for e := range walk.Backward(p.dump) {
		if !e.Memory.OnHost() {
			p.undo(&e)
		}
	}
}

// spanOf returns a segment's span, at the address that the file gives it.
func spanOf(s *alloc.Segment) walk.Span {
	x := walk.SpanOf(s)
	x.Ptr = address(s.Ptr)
	return x
}

func (p *part) undo(e *snapshot.Event) {
	addr := address(e.Ptr)
	switch effect := walk.Of(e.Action); effect {
	case walk.Begin, walk.End, walk.Complete:
		after := p.buffers.Undo(effect, addr, piece{addr, e.Allocated, e.Stream, e.Seq})
		if after.Is == walk.Pending && e.Action == mem.Freed {
			p.late[e.Seq] = true
			if after.What.told == atEnd {
				p.left[e.Ptr] = *e
			}
		}
	case walk.Grow:
		p.open.Cut(addr, e.Allocated)
	case walk.Shrink:
		if p.open.At(addr) == nil {
			p.open.Insert(walk.Span{Ptr: addr, Size: e.Allocated, Pool: "large", Stream: e.Stream, Expandable: p.expandable})
		}
	}
}

// coverFirst gives the buffers before the first event that lie in no segment segments of their own.
func (w *writer) coverFirst() {
	var bare []piece
	for _, was := range w.buffers {
		if x := was.What; was.Is >= walk.Live && x.told != atEnd && w.open.At(x.ptr) == nil {
			bare = append(bare, x)
		}
	}
	slices.SortFunc(bare, func(x, y piece) int { return cmp.Compare(x.told, y.told) })
	for _, b := range bare {
		w.cover(b.ptr, b.size, b.stream)
	}
	for _, b := range w.live.sorted {
		if was := w.buffers[b.addr]; was.Is == walk.Unknown || was.What.told == atEnd {
			w.cover(b.addr, b.size, b.stream)
		}
	}
	w.buffers = nil
}
