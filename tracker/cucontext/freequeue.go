//go:build cuda && cgo

package cucontext

import (
	"sync"

	"gorgonia.org/cu"
)

// freeQueue has the frees of a batched context whose outcome is not known yet: they are not in the ledger
// any more, and are registered again if the free failed.
//
// A free has failed if the driver still has the address. But the driver also has an
// address that was freed and then given to an allocation of the same batch that has not
// returned yet. So a free is held, not restored, while allocations are under way. If one
// returns the address, the free succeeded.
type freeQueue struct {
	restore func(p cu.DevicePtr, putBack func() error)

	mu         sync.Mutex
	frees      map[cu.DevicePtr]*queuedFree
	allocating int // allocations under way
}

// queuedFree is one free. An address is in the queue once: it can be freed a second time
// only after an allocation has returned it.
type queuedFree struct {
	ptr     cu.DevicePtr
	undo    func() error
	queued  bool // the context has queued it: the next DoWork executes it
	suspect bool // a call failed since it was added
	held    bool // its batch is done, but the driver still has the address
}

func newFreeQueue(restore func(cu.DevicePtr, func() error)) *freeQueue {
	return &freeQueue{restore: restore, frees: make(map[cu.DevicePtr]*queuedFree)}
}

func (q *freeQueue) add(p cu.DevicePtr, undo func() error) *queuedFree {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &queuedFree{ptr: p, undo: undo}
	q.frees[p] = f
	return f
}

func (q *freeQueue) queued(f *queuedFree) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.queued = true
}

// pending returns the frees that a DoWork which starts now will have executed at its end.
func (q *freeQueue) pending() []*queuedFree {
	q.mu.Lock()
	defer q.mu.Unlock()
	var pending []*queuedFree
	for _, f := range q.frees {
		if f.queued && !f.held {
			pending = append(pending, f)
		}
	}
	return pending
}

// reconcile ends the DoWork that has executed pending.
func (q *freeQueue) reconcile(pending []*queuedFree, failed bool, stillAllocated func(cu.DevicePtr) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.frees {
		f.suspect = f.suspect || failed
	}
	for _, f := range pending {
		if q.frees[f.ptr] != f {
			continue // the address was allocated again
		}
		f.held = f.suspect && stillAllocated(f.ptr)
		if !f.held {
			delete(q.frees, f.ptr)
		}
	}
	q.restoreHeld()
}

func (q *freeQueue) beginAlloc() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.allocating++
}

// endAlloc takes the result of an allocation. If the driver returns an address again, its free
// succeeded.
func (q *freeQueue) endAlloc(p cu.DevicePtr, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.allocating--
	delete(q.frees, p)
	for _, f := range q.frees {
		f.suspect = f.suspect || err != nil
	}
	q.restoreHeld()
}

// restoreHeld registers the held addresses again once no running allocation can explain why the driver
// still has them.
func (q *freeQueue) restoreHeld() {
	if q.allocating > 0 {
		return
	}
	for p, f := range q.frees {
		if f.held {
			delete(q.frees, p)
			q.restore(p, f.undo)
		}
	}
}

func (q *freeQueue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.frees)
}
