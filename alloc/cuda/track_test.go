//go:build cuda && cgo && linux

package cuda_test

import (
	"io"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

var _ cuda.Registrar[tracker.Kind] = (*tracker.MemTracker)(nil)

func newTracker(t *testing.T) *tracker.MemTracker {
	t.Helper()
	tr, err := tracker.New(tracker.Config{Device: open(t), NoCache: true, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	return tr
}

func newContext(t *testing.T) *cu.Ctx {
	t.Helper()
	ctx := cu.NewContext(0, cu.SchedAuto)
	t.Cleanup(func() { assert.NoError(t, ctx.Close()) })
	// v0.9.6's Close races with the start of its own Run unless a call was made between.
	require.NoError(t, ctx.Do(func() error { return nil }))
	return ctx
}

// live is the ledger: bytes by address.
func live(tr *tracker.MemTracker) map[cu.DevicePtr]int {
	m := map[cu.DevicePtr]int{}
	for a := range tr.Snapshot().Allocations() {
		m[cu.DevicePtr(a.Ptr)] = int(a.Requested)
	}
	return m
}

// asked is the line of code that asked for memory. A report names it too, where it is
// not in a package of this module.
func asked(a tracker.Allocation) string {
	for _, f := range a.Stack {
		if !strings.HasPrefix(f.Function, "gorgonia.org/cu.") && !strings.Contains(f.Function, "/alloc/cuda.") {
			return f.String()
		}
	}
	return ""
}

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
	note(err.Error())
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
	require.Equal(t, want, program(cuda.Track(ctx, tr)))
	require.Empty(t, live(tr))
	total := tr.Snapshot().Total
	require.EqualValues(t, 3, total.Count)
}

func TestTrackEntersWhatTheDriverTook(t *testing.T) {
	tr := newTracker(t)
	inner := cu.NewContext(0, cu.SchedAuto)
	before, err := inner.MemAlloc(77)
	require.NoError(t, err)
	ctx := cuda.Track(inner, tr)

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
	require.NoError(t, ctx.(interface{ TrackErr() error }).TrackErr())
}

func TestTrackedFreeThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	tr := newTracker(t)
	ctx, machine := cuda.Track(newContext(t), tr), control(t)
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
	ctx := cuda.Track(newContext(t), tr)
	p, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	ctx.MemFree(p)
	require.NoError(t, ctx.Error())
	require.ErrorIs(t, ctx.(interface{ TrackErr() error }).TrackErr(), alloc.ErrClosed)
}

func TestPackageFunctions(t *testing.T) {
	tr := newTracker(t)
	ctx := newContext(t)
	require.NoError(t, ctx.Lock()) // current on this thread from here on
	defer func() { require.NoError(t, ctx.Unlock()) }()
	a, err := cuda.MemAlloc(tr, 1000)
	require.NoError(t, err)
	m, err := cuda.MemAllocManaged(tr, 2000, cu.AttachGlobal)
	require.NoError(t, err)
	p, pitch, err := cuda.MemAllocPitch(tr, 10, 3, 4)
	require.NoError(t, err)
	require.Equal(t, map[cu.DevicePtr]int{a: 1000, m: 2000, p: int(3 * pitch)}, live(tr))
	plain, err := cu.MemAlloc(1)
	require.NoError(t, err)
	for _, p := range []cu.DevicePtr{a, m, p, plain} {
		require.NoError(t, cuda.MemFree(tr, p))
		require.ErrorIs(t, cuda.MemFree(tr, p), cu.InvalidValue)
	}
	require.Empty(t, live(tr))
	_, err = cuda.MemAlloc(tr, 1<<50)
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
	before := memInfo(t, dev)
	p, err := cuda.MemAlloc(tr, 4<<20)
	require.ErrorIs(t, err, alloc.ErrClosed)
	require.Zero(t, p)
	if gpuemu.Emulated() {
		require.Equal(t, before, memInfo(t, dev), "it is freed again")
	}
}
