package torch

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// pendingFrees are the frees of a tracker's history that left memory pending. PyTorch has two events for a
// free, for its request and its completion. A tracker has Freed, and FreeCompleted only if that is later.
type pendingFrees struct {
	late map[uint64]bool              // by the number of the event Freed
	left map[alloc.Ptr]snapshot.Event // those that are not completed at the end
	open map[int64]snapshot.Event     // those that are not at the place that is being written
}

func findPendingFrees(r *snapshot.Record) pendingFrees {
	f := pendingFrees{late: make(map[uint64]bool), left: make(map[alloc.Ptr]snapshot.Event), open: make(map[int64]snapshot.Event)}
	pending := pendingIn(r.Snapshot)
	waits := make(map[alloc.Ptr]bool, len(pending)) // at some time
	for p := range pending {
		waits[p] = true
	}
	for e := range r.Events() {
		if e.Action == mem.FreeCompleted {
			waits[e.Ptr] = true
		}
	}
	if len(waits) == 0 {
		return f
	}
	for e := range r.Events() {
		switch {
		case !waits[e.Ptr]:
		case e.Action == mem.Freed:
			f.left[e.Ptr] = e
		case e.Action == mem.FreeCompleted:
			if freed, ok := f.left[e.Ptr]; ok {
				f.late[freed.Seq] = true
			}
			delete(f.left, e.Ptr)
		case e.Action == mem.Allocated:
			delete(f.left, e.Ptr)
		}
	}
	for p, freed := range f.left {
		if _, waits := pending[p]; waits {
			f.late[freed.Seq] = true
		} else {
			delete(f.left, p)
		}
	}
	return f
}

// freed writes a free. If its completion is an event of the history, it is written there.
func (w *writer) freed(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	if w.pending[addr] {
		delete(w.pending, addr)
	} else {
		w.memoryEvent(l, "free_requested", e, e.Requested)
	}
	if w.frees.late[e.Seq] {
		w.frees.open[addr] = e
		return
	}
	w.memoryEvent(l, "free_completed", e, e.Requested)
	w.uncover(l, e)
}

// completed writes that a free is completed, which of a block from before the history was not written.
func (w *writer) completed(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	freed, ok := w.frees.open[addr]
	if !ok {
		e.Requested = e.Allocated
		w.memoryEvent(l, "free_requested", e, e.Requested)
		freed = e
	}
	delete(w.frees.open, addr)
	freed.Time = e.Time
	w.memoryEvent(l, "free_completed", freed, freed.Requested)
	w.uncover(l, freed)
}
