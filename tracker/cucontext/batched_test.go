//go:build cuda && cgo && linux

package cucontext_test

import (
	"maps"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// batch returns a tracked batched context. work does its batches.
func batch(t *testing.T, tr *tracker.MemTracker) cucontext.Batched {
	t.Helper()
	ctx, ok := cucontext.Track(cu.NewBatchedContext(newContext(t), 0), tr).(cucontext.Batched)
	require.True(t, ok)
	return ctx
}

// work does the batches of calls that wait, while call runs.
func work(t *testing.T, ctx cucontext.Batched, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	for {
		select {
		case <-ctx.WorkAvailable():
			ctx.DoWork()
		case <-done:
			ctx.DoWork()
			return
		}
	}
}

func TestBatched(t *testing.T) {
	tr := newTracker(t)
	ctx := batch(t, tr)
	var a, m, c cu.DevicePtr
	host, back := []byte("batched"), make([]byte, 7)
	work(t, ctx, func() {
		var err error
		a, err = ctx.MemAlloc(1000)
		assert.NoError(t, err)
		m, err = ctx.MemAllocManaged(2000, cu.AttachGlobal)
		assert.NoError(t, err)
		c, err = ctx.AllocAndCopy(unsafe.Pointer(&host[0]), int64(len(host)))
		assert.NoError(t, err)
		ctx.MemcpyDtoH(unsafe.Pointer(&back[0]), c, int64(len(back)))
	})
	require.Equal(t, "batched", string(back))
	require.Equal(t, map[cu.DevicePtr]int{a: 1000, m: 2000, c: 7}, live(tr))
	for a := range tr.Snapshot().Allocations() {
		require.Contains(t, asked(a), "batched_test.go")
	}
	ctx.MemFree(a)
	require.ElementsMatch(t, []cu.DevicePtr{m, c}, slices.Collect(maps.Keys(live(tr))), "queued, and forgotten")
	work(t, ctx, func() {
		again, err := ctx.MemAlloc(1000)
		assert.NoError(t, err)
		if gpuemu.Emulated() {
			assert.Equal(t, a, again, "the address is given anew in the same batch")
		}
		ctx.MemFree(again)
		ctx.MemFree(m)
		ctx.MemFree(c)
	})
	require.Empty(t, live(tr))
	require.NoError(t, ctx.TrackErr())
}

func TestBatchedFreeThatFailsLate(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := batch(t, tr), control(t)
	var a, b cu.DevicePtr
	work(t, ctx, func() {
		a, _ = ctx.MemAlloc(1000)
		b, _ = ctx.MemAlloc(2000)
	})
	stack := map[cu.DevicePtr]mem.Stack{}
	for a := range tr.Snapshot().Allocations() {
		stack[cu.DevicePtr(a.Ptr)] = a.Stack
	}

	fail(t, machine, "cuMemFree_v2", 719)
	ctx.MemFree(a) // this one fails
	ctx.MemFree(b)
	require.Empty(t, live(tr))
	work(t, ctx, func() {})
	require.Error(t, ctx.Errors())
	require.Equal(t, map[cu.DevicePtr]int{a: 1000}, live(tr))
	for r := range tr.Snapshot().Allocations() {
		require.Equal(t, stack[a], r.Stack, "with its old call stack")
	}

	// A free that fails in the batch of an allocation that goes well.
	fail(t, machine, "cuMemFree_v2", 719)
	ctx.MemFree(a)
	var c cu.DevicePtr
	work(t, ctx, func() {
		var err error
		c, err = ctx.MemAlloc(3000)
		assert.Error(t, err, "of the batch, not of the allocation")
	})
	require.Equal(t, map[cu.DevicePtr]int{a: 1000, c: 3000}, live(tr))

	work(t, ctx, func() {
		ctx.MemFree(a)
		ctx.MemFree(c)
	})
	require.Empty(t, live(tr))
}

// TestBatchedAddressGivenAnewBesideAFreeThatFails has one batch free two buffers, of
// which only the first free goes well, and allocate: the driver gives the first one's
// address again.
func TestBatchedAddressGivenAnewBesideAFreeThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := batch(t, tr), control(t)
	for range 200 { // the caller and DoWork race for the ledger
		var a, b, again cu.DevicePtr
		work(t, ctx, func() {
			a, _ = ctx.MemAlloc(1000)
			b, _ = ctx.MemAlloc(2000)
		})
		require.NoError(t, machine.Fail(gpuemu.Fault{Function: "cuMemFree_v2", From: 2, Code: 719}))
		work(t, ctx, func() {
			ctx.MemFree(a)
			ctx.MemFree(b)
			again, _ = ctx.MemAlloc(500)
		})
		machine.Heal()
		require.Equal(t, a, again)
		require.Equal(t, map[cu.DevicePtr]int{a: 500, b: 2000}, live(tr))
		require.NoError(t, ctx.TrackErr())
		work(t, ctx, func() {
			ctx.MemFree(a)
			ctx.MemFree(b)
		})
		require.Empty(t, live(tr))
	}
}

func TestBatchedFreeOnALostDevice(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := batch(t, tr), control(t)
	var p cu.DevicePtr
	work(t, ctx, func() { p, _ = ctx.MemAlloc(1000) })
	machine.Lose()
	ctx.MemFree(p)
	work(t, ctx, func() {})
	require.Equal(t, map[cu.DevicePtr]int{p: 1000}, live(tr), "nothing was freed")
	machine.Heal()
	ctx.MemFree(p)
	work(t, ctx, func() {})
	require.Empty(t, live(tr))
}

func TestBatchedAllocationsThatFail(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := batch(t, tr), control(t)
	host := []byte("batched")
	work(t, ctx, func() {
		_, err := ctx.MemAlloc(1 << 50)
		assert.Error(t, err)
	})
	require.Empty(t, live(tr))
	fail(t, machine, "cuMemcpyHtoD_v2", 719)
	var p cu.DevicePtr
	work(t, ctx, func() {
		var err error
		p, err = ctx.AllocAndCopy(unsafe.Pointer(&host[0]), 7)
		assert.Error(t, err)
	})
	require.Equal(t, map[cu.DevicePtr]int{p: 7}, live(tr), "only the copy failed")
	work(t, ctx, func() { ctx.MemFree(p) })
	require.Empty(t, live(tr))
}

func TestBatchedRun(t *testing.T) {
	tr := newTracker(t)
	ctx := batch(t, tr)
	ended := make(chan error)
	go func() { ended <- ctx.Run(nil) }()
	p, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	q, pitch, err := ctx.MemAllocPitch(100, 2, 4)
	require.NoError(t, err)
	require.Equal(t, map[cu.DevicePtr]int{p: 1000, q: int(2 * pitch)}, live(tr))
	ctx.MemFree(p)
	ctx.MemFree(q)
	_, err = ctx.MemAlloc(1 << 50)
	require.Error(t, err)
	require.Error(t, <-ended, "a batch that fails ends Run")
	require.Empty(t, live(tr))
}

func TestBatchedClose(t *testing.T) {
	tr := newTracker(t)
	ctx := batch(t, tr)
	work(t, ctx, func() {
		p, err := ctx.MemAlloc(1000)
		assert.NoError(t, err)
		_, err = ctx.MemAlloc(2000)
		assert.NoError(t, err)
		ctx.MemFree(p)
	})
	require.Len(t, live(tr), 1)
	for p := range live(tr) {
		ctx.MemFree(p) // and nobody does the work
	}
	require.NoError(t, ctx.Close())
	require.Empty(t, live(tr))
	require.NoError(t, ctx.TrackErr())
}

// closing is a context that is closed while Run waits for work.
type closing struct {
	cu.Context
	work chan func() error
}

func (c closing) Work() <-chan func() error { return c.work }

func TestBatchedRunEndsWithItsContext(t *testing.T) {
	ctx := closing{work: make(chan func() error)}
	close(ctx.work)
	require.NoError(t, cucontext.TrackBatched(cu.NewBatchedContext(ctx, 0), newTracker(t)).Run(nil))
}

func TestBatchedFreeCountsInTheCallersSection(t *testing.T) {
	tr := newTracker(t)
	ctx := batch(t, tr)
	var section *tracker.Section
	work(t, ctx, func() {
		section = tr.Section("step")
		defer section.End()
		p, err := ctx.MemAlloc(1000)
		assert.NoError(t, err)
		ctx.MemFree(p)
	})
	require.Equal(t, mem.Tally{Count: 1, Bytes: 1000}, section.Data().Freed)
}

func TestBatchedWith(t *testing.T) {
	tr := newTracker(t)
	ctx := batch(t, tr)
	weight := cucontext.Tensor{Kind: tracker.Parameter, Shape: alloc.Shape{2, 3}, DType: alloc.Float32, Label: "w"}
	work(t, ctx, func() {
		p, err := cucontext.With(ctx, weight).AllocAndCopy(unsafe.Pointer(&make([]byte, 24)[0]), 24)
		assert.NoError(t, err)
		for a := range tr.Snapshot().Allocations() {
			assert.Equal(t, weight, cucontext.Tensor{Kind: a.Kind, Shape: a.Shape, DType: a.DType, Label: a.Label})
		}
		ctx.MemFree(p)
		assert.NoError(t, ctx.TrackErr())
		ctx.MemFree(p)
		assert.ErrorIs(t, ctx.TrackErr(), alloc.ErrDoubleFree)
	})
	require.Empty(t, live(tr))
}

func TestBatchedOutOfMemory(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx := batch(t, tr)
	work(t, ctx, func() {
		_, err := ctx.MemAlloc(1 << 30)
		assert.NoError(t, err)
		_, err = ctx.MemAlloc(1 << 50)
		var oom *tracker.OutOfMemoryError
		if assert.ErrorAs(t, err, &oom) {
			assert.Len(t, oom.CallSites, 1)
		}
	})
}
