//go:build cuda && cgo

package cucontext

import (
	"sync"

	"gorgonia.org/cu"
)

// freeQueue is the frees that a batched context was given and that are not settled:
// their records are out of the ledger, to come back if the free failed.
//
// Whether one failed is seen from the driver, which still has the address then.
// It also has an address that was freed well and given anew in the same batch, to
// an allocation whose caller has yet to hear of it. So what the driver still has is
// held until no allocation is under way; one that returns the address clears it.
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
	held    bool // its batch is done, and the driver has the address
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

// endAlloc is told what an allocation returned. An address that the driver gives had
// been freed.
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

// restoreHeld puts back what is held when no allocation can clear it any more.
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
