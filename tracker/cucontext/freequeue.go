//go:build cuda && cgo

package cucontext

import (
	"sync"

	"gorgonia.org/cu"
)

// freeQueue has the frees that a batched context was given and that are not settled:
// their records are out of the ledger, and are entered again if the free failed.
//
// A free has failed if the driver still has the address. But the driver also has an
// address that was freed and then given to an allocation of the same batch that has not
// returned yet. So a free is held, not restored, while allocations are under way. If one
// returns the address, the free went well.
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
	putBack func() error
	queued  bool // the context has it: the next DoWork will do it
	suspect bool // a call failed since it was added
	held    bool // its batch is done, but the driver still has the address
}

func newFreeQueue(restore func(cu.DevicePtr, func() error)) *freeQueue {
	return &freeQueue{restore: restore, frees: make(map[cu.DevicePtr]*queuedFree)}
}

func (q *freeQueue) add(p cu.DevicePtr, putBack func() error) *queuedFree {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &queuedFree{ptr: p, putBack: putBack}
	q.frees[p] = f
	return f
}

func (q *freeQueue) queued(f *queuedFree) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.queued = true
}

// round is the frees that a DoWork which begins now will have done at its end.
func (q *freeQueue) round() []*queuedFree {
	q.mu.Lock()
	defer q.mu.Unlock()
	var round []*queuedFree
	for _, f := range q.frees {
		if f.queued && !f.held {
			round = append(round, f)
		}
	}
	return round
}

// settle is the end of the DoWork that has done round.
func (q *freeQueue) settle(round []*queuedFree, failed bool, stillAllocated func(cu.DevicePtr) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.frees {
		f.suspect = f.suspect || failed
	}
	for _, f := range round {
		if q.frees[f.ptr] != f {
			continue // the address was given anew
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

// endAlloc takes what an allocation returned. If the driver gives an address again, its
// free went well.
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

// restoreHeld enters the waiting frees again once no allocation under way can explain why the
// driver has their addresses.
func (q *freeQueue) restoreHeld() {
	if q.allocating > 0 {
		return
	}
	for p, f := range q.frees {
		if f.held {
			delete(q.frees, p)
			q.restore(p, f.putBack)
		}
	}
}

func (q *freeQueue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.frees)
}
