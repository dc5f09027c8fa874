//go:build cuda && cgo && linux

package cucontext_test

import (
	"flag"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
)

// random checks programs of these actions, each on a tracked context of its own. After each
// action the ledger must be the driver's own list. A failure prints the program and
// its seed; -long tries many more.
func random(t *testing.T, actions func(t *testing.T, o *oracle) map[string]func(*rapid.T)) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
		return
	}
	if *trackertest.Long {
		require.NoError(t, flag.Set("rapid.checks", "10000"))
	}
	dev, machine := open(t), control(t)
	rapid.Check(t, func(r *rapid.T) {
		tr, err := tracker.New(tracker.Config{Device: dev, NoCache: true, Report: io.Discard})
		require.NoError(r, err)
		o := &oracle{machine: machine, tr: tr, inner: cu.NewContext(0, cu.SchedAuto)}
		require.NoError(r, o.inner.Do(func() error { return nil })) // see newContext
		all := actions(t, o)
		all["break"], all[""] = o.breakCall, o.check
		r.Repeat(all)
		machine.Heal()
		require.NoError(r, o.ctx.Close())
		require.Empty(r, live(tr))
		require.NoError(r, tr.Close())
	})
}

type oracle struct {
	machine *gpuemu.Control
	tr      *tracker.MemTracker
	inner   *cu.Ctx
	ctx     cu.Context // tracked
	held    []cu.DevicePtr
	arrays  []cu.Array
}

func (o *oracle) breakCall(r *rapid.T) {
	o.machine.Heal()
	require.NoError(r, o.machine.Fail(gpuemu.Fault{
		Function: rapid.SampledFrom([]string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuArrayCreate_v2", "cuArrayDestroy", "cuMemGetInfo_v2"}).Draw(r, "function"),
		From:     rapid.IntRange(1, 3).Draw(r, "call"),
		Onward:   rapid.Bool().Draw(r, "onward"),
		Code:     rapid.SampledFrom([]int{1, 2, 719, 999}).Draw(r, "code"),
	}))
}

// check compares the ledger with the driver. What the program holds is what it was given and
// did not free: of frees that failed the driver's list tells.
func (o *oracle) check(r *rapid.T) {
	trackertest.RequireExact(r, o.tr.Snapshot())
	list, err := gpuemu.Live()
	require.NoError(r, err)
	driver := make(map[cu.DevicePtr]int, len(list))
	o.held = o.held[:0]
	for p, bytes := range list {
		driver[cu.DevicePtr(p)] = int(bytes)
		o.held = append(o.held, cu.DevicePtr(p))
	}
	slices.Sort(o.held)
	arrays, err := gpuemu.LiveArrays()
	require.NoError(r, err)
	for p, bytes := range arrays {
		driver[cu.DevicePtr(p)] = int(bytes)
	}
	require.Len(r, arrays, len(o.arrays))
	require.Equal(r, driver, live(o.tr))
	require.NoError(r, trackErr(o.ctx))
}

func (o *oracle) bytes(r *rapid.T) int64 {
	return rapid.SampledFrom([]int64{1, 512, 1000, 1 << 20, 5 << 20, 300 << 20, 2 << 30}).Draw(r, "bytes")
}

// some draws up to n different addresses that are live.
func (o *oracle) some(r *rapid.T, n int) []cu.DevicePtr {
	if len(o.held) == 0 {
		return nil
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom(o.held), 0, min(n, len(o.held)), rapid.ID).Draw(r, "addresses")
}

func TestRandomPrograms(t *testing.T) {
	random(t, func(t *testing.T, o *oracle) map[string]func(*rapid.T) {
		o.ctx = cucontext.Track(o.inner, o.tr)
		return map[string]func(*rapid.T){
			"alloc":   func(r *rapid.T) { _, _ = o.ctx.MemAlloc(o.bytes(r)) },
			"managed": func(r *rapid.T) { _, _ = o.ctx.MemAllocManaged(o.bytes(r), cu.AttachGlobal) },
			"pitch":   func(r *rapid.T) { _, _, _ = o.ctx.MemAllocPitch(o.bytes(r), 3, 4) },
			"array": func(r *rapid.T) {
				desc := cu.ArrayDesc{Width: uint(o.bytes(r)), Height: 2, Format: cu.Uint8, NumChannels: 1}
				if a, err := cucontext.MakeArray(o.ctx, desc); err == nil {
					o.arrays = append(o.arrays, a)
				}
			},
			"destroy": func(r *rapid.T) {
				if len(o.arrays) == 0 {
					r.Skip("no array")
				}
				i := rapid.IntRange(0, len(o.arrays)-1).Draw(r, "array")
				if o.ctx.DestroyArray(o.arrays[i]); o.ctx.Error() == nil {
					o.arrays = slices.Delete(o.arrays, i, i+1)
				}
			},
			"free": func(r *rapid.T) {
				for _, p := range o.some(r, 3) {
					o.ctx.MemFree(p)
				}
			},
		}
	})
}

// TestBatchedRandomPrograms queues frees and at most one allocation, which ends the batch: of
// several batches in one DoWork gorgonia.org/cu keeps the last one's errors only.
func TestBatchedRandomPrograms(t *testing.T) {
	random(t, func(t *testing.T, o *oracle) map[string]func(*rapid.T) {
		batched := cucontext.TrackBatched(cu.NewBatchedContext(o.inner, 0), o.tr)
		o.ctx = batched
		batch := func(r *rapid.T, last func()) {
			frees := o.some(r, 5)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, p := range frees {
					batched.MemFree(p)
				}
				last()
			}()
			for {
				select {
				case <-batched.WorkAvailable():
					batched.DoWork()
				case <-done:
					batched.DoWork()
					return
				}
			}
		}
		return map[string]func(*rapid.T){
			"free": func(r *rapid.T) { batch(r, func() {}) },
			"alloc": func(r *rapid.T) {
				n := o.bytes(r)
				batch(r, func() { _, _ = batched.MemAlloc(n) })
			},
			"managed": func(r *rapid.T) {
				n := o.bytes(r)
				batch(r, func() { _, _ = batched.MemAllocManaged(n, cu.AttachGlobal) })
			},
			"pitch": func(r *rapid.T) { _, _, _ = batched.MemAllocPitch(o.bytes(r), 3, 4) },
		}
	})
}
