//go:build cuda && cgo

package cucontext

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
)

const a, b cu.DevicePtr = 0x1000, 0x2000

// newQueue is a queue, what it put back, and a driver that has these addresses.
func newQueue(live ...cu.DevicePtr) (q *freeQueue, back *[]cu.DevicePtr, stillAllocated func(cu.DevicePtr) bool) {
	back = new([]cu.DevicePtr)
	q = newFreeQueue(func(p cu.DevicePtr, _ func() error) { *back = append(*back, p) })
	return q, back, func(p cu.DevicePtr) bool { return slices.Contains(live, p) }
}

func (q *freeQueue) addQueued(p cu.DevicePtr) { q.queued(q.add(p, nil)) }

func TestFreeQueueWaitsForTheAllocationOfTheBatch(t *testing.T) {
	q, back, driver := newQueue(a, b)
	q.addQueued(a) // goes well
	q.addQueued(b) // fails
	q.beginAlloc()
	q.reconcile(q.pending(), true, driver)
	require.Empty(t, *back, "the driver may have given either anew")
	q.endAlloc(a, nil)
	require.Equal(t, []cu.DevicePtr{b}, *back)
	require.Empty(t, q.frees)
}

func TestFreeQueueSettlesWhatWasQueuedBeforeDoWork(t *testing.T) {
	q, back, driver := newQueue(a, b)
	f := q.add(a, nil) // its goroutine has yet to queue it
	q.addQueued(b)
	round := q.pending()
	q.queued(f) // while DoWork runs, which did it or did not
	q.reconcile(round, true, driver)
	require.Equal(t, []cu.DevicePtr{b}, *back, "whether a was done is not known")
	q.reconcile(q.pending(), false, driver)
	require.Equal(t, []cu.DevicePtr{b, a}, *back, "it failed in the first DoWork, or in the second")
}

func TestFreeQueueTakesTheWordOfAnAllocation(t *testing.T) {
	q, back, driver := newQueue(a)
	q.addQueued(a)
	round := q.pending()
	q.beginAlloc()
	q.endAlloc(b, errors.New("of the batch")) // and another batch goes well
	q.reconcile(round, false, driver)
	require.Equal(t, []cu.DevicePtr{a}, *back)
}
