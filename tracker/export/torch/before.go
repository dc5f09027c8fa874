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

// before is what going back from the end of a history finds: what there was before its first event, and the
// frees that left memory pending. PyTorch has two events for a free, for its request and its completion. A tracker has
// Freed, and FreeCompleted only if that is later.
type before struct {
	buffers walk.Back[piece]
	late    map[uint64]bool              // by the number of the event Freed
	left    map[alloc.Ptr]snapshot.Event // those that are not completed at the end
}

// piece is the memory of a buffer that an event told of.
type piece struct {
	addr, size int64
	stream     alloc.Stream
	told       uint64 // the number of the event
}

// atEnd is piece.told of the blocks that are pending at the end.
const atEnd = math.MaxUint64

// key is an address as blocks have it.
func key(p alloc.Ptr) alloc.Ptr { return alloc.Ptr(address(p)) }

// goBack goes back over a history. It leaves the segments before the first event in open.
func (p *part) goBack() {
	s := p.record.Snapshot
	for _, x := range s.Segments {
		if addr := address(x.Ptr); p.open.at(addr) == nil {
			p.open.insert(span{addr: addr, size: int64(x.Size), pool: x.Pool, stream: x.Stream, expandable: x.Expandable, private: x.Private})
		}
	}
	p.before = before{make(walk.Back[piece]), make(map[uint64]bool), make(map[alloc.Ptr]snapshot.Event)}
	for ptr := range pendingIn(s) {
		p.buffers.Enter(key(ptr), walk.Pending, piece{told: atEnd})
	}
	for e := range p.record.Backward() {
		if !e.Memory.OnHost() {
			p.undo(&e)
		}
	}
}

func (p *part) undo(e *snapshot.Event) {
	addr, size := address(e.Ptr), int64(e.Allocated)
	switch effect := walk.Of(e.Action); effect {
	case walk.Begin, walk.End, walk.Complete:
		after := p.buffers.Undo(effect, key(e.Ptr), piece{addr, size, e.Stream, e.Seq})
		if after.Is == walk.Pending && e.Action == mem.Freed {
			p.late[e.Seq] = true
			if after.What.told == atEnd {
				p.left[e.Ptr] = *e
			}
		}
	case walk.Grow:
		p.open.cut(addr, size)
	case walk.Shrink:
		if p.open.at(addr) == nil {
			p.open.insert(span{addr: addr, size: size, pool: alloc.LargePool, stream: e.Stream, expandable: p.expandable})
		}
	}
}

// coverFirst gives the buffers before the first event that lie in no segment segments of their own.
func (w *writer) coverFirst() {
	var bare []piece
	for _, was := range w.buffers {
		if x := was.What; was.Is >= walk.Live && x.told != atEnd && w.open.at(x.addr) == nil {
			bare = append(bare, x)
		}
	}
	slices.SortFunc(bare, func(x, y piece) int { return cmp.Compare(x.told, y.told) })
	for _, b := range bare {
		w.cover(b.addr, b.size, b.stream)
	}
	for _, b := range w.live.sorted {
		if was := w.buffers[alloc.Ptr(b.addr)]; was.Is == walk.Unknown || was.What.told == atEnd {
			w.cover(b.addr, b.size, b.stream)
		}
	}
	w.buffers = nil
}
