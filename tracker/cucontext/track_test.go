//go:build cuda && cgo && linux

package cucontext_test

import (
	"errors"
	"io"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
)

// program is code written against a plain cu.Context, kernels left out: it
// returns all that it saw.
func program(ctx cu.Context) (saw []any) {
	note := func(values ...any) { saw = append(saw, values...) }
	host := []byte("the quick brown fox jumps over the lazy dog")
	back := make([]byte, len(host))
	n := int64(len(host))

	a, err := ctx.MemAlloc(n)
	note(a != 0, err)
	b, err := ctx.MemAllocManaged(3<<20, cu.AttachGlobal)
	note(b != 0, err)
	c, pitch, err := ctx.MemAllocPitch(100, 7, 4)
	note(c != 0, pitch, err)
	ctx.MemcpyHtoD(a, unsafe.Pointer(&host[0]), n)
	note(ctx.Error())
	ctx.Memcpy(b, a, n)
	ctx.MemcpyDtoH(unsafe.Pointer(&back[0]), b, n)
	note(string(back), ctx.Error())
	ctx.MemFree(b)
	note(ctx.Error())
	ctx.MemFree(b)
	note(ctx.Error())
	_, err = ctx.MemAlloc(1 << 50)
	note(errors.Is(err, cu.OutOfMemory))
	_, total, err := ctx.MemInfo()
	note(total, err)
	ctx.MemFree(c)
	ctx.MemFree(a)
	note(ctx.Error())
	return saw
}

func TestTrackedProgramSeesTheSame(t *testing.T) {
	tr := newTracker(t)
	plain := cu.NewContext(0, cu.SchedAuto)
	want := program(plain)
	require.NoError(t, plain.Close())
	ctx := newContext(t)
	require.Equal(t, want, program(cucontext.Track(ctx, tr)))
	require.Empty(t, live(tr))
	total := tr.Snapshot().Total
	require.EqualValues(t, 3, total.Count)
}

func TestTrackEntersWhatTheDriverTook(t *testing.T) {
	tr := newTracker(t)
	inner := cu.NewContext(0, cu.SchedAuto)
	before, err := inner.MemAlloc(77)
	require.NoError(t, err)
	ctx := cucontext.Track(inner, tr)

	a, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	m, err := ctx.MemAllocManaged(5000, cu.AttachGlobal)
	require.NoError(t, err)
	p, pitch, err := ctx.MemAllocPitch(100, 7, 4)
	require.NoError(t, err)
	require.Equal(t, map[cu.DevicePtr]int{a: 1000, m: 5000, p: int(7 * pitch)}, live(tr))
	for a := range tr.Snapshot().Allocations() {
		require.Contains(t, asked(a), "track_test.go")
	}

	ctx.MemFree(before)
	require.NoError(t, ctx.Error(), "an address from before is freed as ever")
	require.Len(t, live(tr), 3)
	require.NoError(t, ctx.Close())
	require.Empty(t, live(tr), "the context took its memory with it")
	require.NoError(t, trackErr(ctx))
}

func TestTrackedFreeThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := cucontext.Track(newContext(t), tr), control(t)
	a, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	fail(t, machine, "cuMemFree_v2", 719)
	ctx.MemFree(a)
	require.ErrorIs(t, ctx.Error(), cu.LaunchFailed)
	require.Equal(t, map[cu.DevicePtr]int{a: 1000}, live(tr))
	ctx.MemFree(a)
	require.NoError(t, ctx.Error())
	require.Empty(t, live(tr))

	fail(t, machine, "cuMemAlloc_v2", 2)
	_, err = ctx.MemAlloc(1000)
	require.Error(t, err)
	require.Empty(t, live(tr))
}

// TestTrackAfterTheTrackerClosed: the program gets its memory, TrackErr says what is missing.
func TestTrackAfterTheTrackerClosed(t *testing.T) {
	tr, err := tracker.New(tracker.Config{Device: open(t), Report: io.Discard})
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	ctx := cucontext.Track(newContext(t), tr)
	p, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	ctx.MemFree(p)
	require.NoError(t, ctx.Error())
	require.ErrorIs(t, trackErr(ctx), alloc.ErrClosed)
}

func TestPackageFunctions(t *testing.T) {
	tr := newTracker(t)
	ctx := newContext(t)
	require.NoError(t, ctx.Lock()) // current on this thread from here on
	defer func() { require.NoError(t, ctx.Unlock()) }()
	a, err := cucontext.MemAlloc(tr, 1000)
	require.NoError(t, err)
	m, err := cucontext.MemAllocManaged(tr, 2000, cu.AttachGlobal)
	require.NoError(t, err)
	p, pitch, err := cucontext.MemAllocPitch(tr, 10, 3, 4)
	require.NoError(t, err)
	require.Equal(t, map[cu.DevicePtr]int{a: 1000, m: 2000, p: int(3 * pitch)}, live(tr))
	plain, err := cu.MemAlloc(1)
	require.NoError(t, err)
	for _, p := range []cu.DevicePtr{a, m, p, plain} {
		require.NoError(t, cucontext.MemFree(tr, p))
		require.ErrorIs(t, cucontext.MemFree(tr, p), cu.InvalidValue)
	}
	require.Empty(t, live(tr))
	_, err = cucontext.MemAlloc(tr, 1<<50)
	require.ErrorIs(t, err, cu.OutOfMemory)
}

func TestPackageFunctionsAfterTheTrackerClosed(t *testing.T) {
	dev := open(t)
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	ctx := newContext(t)
	require.NoError(t, ctx.Lock())
	defer func() { require.NoError(t, ctx.Unlock()) }()
	before, err := dev.MemInfo()
	require.NoError(t, err)
	p, err := cucontext.MemAlloc(tr, 4<<20)
	require.ErrorIs(t, err, alloc.ErrClosed)
	require.Zero(t, p)
	if gpuemu.Emulated() {
		after, err := dev.MemInfo()
		require.NoError(t, err)
		require.Equal(t, before, after, "it is freed again")
	}
}

// TestWith is a program that says what it allocates.
func TestWith(t *testing.T) {
	tr := newTracker(t)
	ctx := cucontext.Track(newContext(t), tr)
	weight := cucontext.Tensor{Kind: tracker.Parameter, Shape: alloc.Shape{64, 3}, DType: alloc.Float32, Label: "conv1.weight"}
	w, err := cucontext.With(ctx, weight).MemAlloc(64 * 3 * 4)
	require.NoError(t, err)
	m, err := cucontext.With(ctx, weight).MemAllocManaged(64*3*4, cu.AttachGlobal)
	require.NoError(t, err)
	p, pitch, err := cucontext.With(ctx, weight).MemAllocPitch(12, 64, 4)
	require.NoError(t, err)
	plain, err := ctx.MemAlloc(100)
	require.NoError(t, err)

	var got []cucontext.Tensor
	for a := range tr.Snapshot().Allocations() {
		require.Contains(t, asked(a), "track_test.go")
		got = append(got, cucontext.Tensor{Kind: a.Kind, Shape: a.Shape, DType: a.DType, Label: a.Label})
	}
	rows := weight
	rows.Shape, rows.DType = alloc.Shape{64, int(pitch)}, alloc.Uint8
	require.ElementsMatch(t, []cucontext.Tensor{weight, weight, rows, {Shape: alloc.Shape{100}, DType: alloc.Uint8}}, got)
	require.NoError(t, trackErr(ctx))

	mark := tr.Track()
	require.Equal(t, mark.Live.Bytes, mark.Registered)
	for _, p := range []cu.DevicePtr{w, m, p, plain} {
		ctx.MemFree(p)
		require.NoError(t, ctx.Error())
	}
	require.Empty(t, live(tr))
}

func TestDescribe(t *testing.T) {
	tr := newTracker(t)
	plain := cucontext.Track(newContext(t), tr)
	ctx := cucontext.Describe(plain, func(bytes int64) cucontext.Tensor {
		return cucontext.Tensor{Kind: tracker.Activation, Shape: alloc.Shape{int(bytes) / 2}, DType: alloc.Float16}
	})
	_, err := ctx.MemAlloc(10)
	require.NoError(t, err)
	require.NoError(t, trackErr(plain))
	_, err = ctx.MemAlloc(11)
	require.NoError(t, err, "the program gets its memory")
	require.ErrorContains(t, trackErr(plain), "an allocation of 11 bytes was described as (5,) float16, which has 10")
	for a := range tr.Snapshot().Allocations() {
		require.Equal(t, tracker.Activation, a.Kind)
	}
	require.Panics(t, func() { cucontext.With(cu.Context(cu.NewContext(0, cu.SchedAuto)), cucontext.Tensor{}) })
}

// TestOutOfMemory tells who holds the memory, in what a program sees as cu's error.
func TestOutOfMemory(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
		return
	}
	dir := t.TempDir()
	cuctx := newContext(t)
	dev, err := cucontext.FromContext(cuctx)
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard, OOMDir: dir})
	require.NoError(t, err)
	ctx := cucontext.Track(cuctx, tr)
	_, err = ctx.MemAlloc(500 << 20)
	require.NoError(t, err)
	usage, _ := control(t).Usage(os.Getpid(), 0)
	require.EqualValues(t, 1, usage.Contexts)

	_, pitch, pitchErr := ctx.MemAllocPitch(1<<20, 500, 4)
	require.Zero(t, pitch)
	_, managedErr := cucontext.With(ctx, cucontext.Tensor{Kind: tracker.Parameter, Shape: alloc.Shape{125 << 20}, DType: alloc.Float32}).MemAlloc(500 << 20)
	for kind, err := range map[tracker.Kind]error{tracker.Unspecified: pitchErr, tracker.Parameter: managedErr} {
		require.ErrorIs(t, err, cu.OutOfMemory)
		require.ErrorIs(t, err, alloc.ErrOutOfMemory)
		var oom *tracker.OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		require.Equal(t, kind, oom.Kind)
		require.Equal(t, 500*alloc.MiB, oom.Requested)
		require.Equal(t, alloc.GiB, oom.Total)
		require.Len(t, oom.CallSites, 1)
		require.Equal(t, 500*alloc.MiB, oom.CallSites[0].Bytes)
		require.NotEmpty(t, oom.Advice)
		require.FileExists(t, oom.Dump)
	}
}

func TestDoubleFreeIsTold(t *testing.T) {
	tr := newTracker(t)
	ctx := cucontext.Track(newContext(t), tr)
	p, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	ctx.MemFree(p)
	require.NoError(t, trackErr(ctx))
	ctx.MemFree(p)
	require.ErrorIs(t, trackErr(ctx), alloc.ErrDoubleFree)
	require.ErrorIs(t, trackErr(ctx), cu.InvalidValue)
	require.ErrorIs(t, ctx.Error(), cu.InvalidValue, "as ever")
}
