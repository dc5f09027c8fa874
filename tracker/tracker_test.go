package tracker_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/goroutines"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestZeroConfigWorks(t *testing.T) {
	t.Chdir(t.TempDir())
	tr, err := tracker.New(tracker.Config{})
	require.NoError(t, err)
	take(t, tr, tracker.Parameter, 3)
	require.Equal(t, int64(1), tr.Track().Live.Count)
	require.NoError(t, tr.Close())
}

func TestSetDefault(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	tracker.SetDefault(tr)
	defer tracker.SetDefault(nil)
	assert.Same(t, tr, tracker.Default())
	_, err := tracker.Alloc(alloc.Shape{4}, alloc.Float32, tracker.Input)
	require.NoError(t, err)
	live := tr.Snapshot()
	assert.Equal(t, alloc.Bytes(16), live.Live.Bytes)
	for site := range live.CallSites() {
		assert.Contains(t, site.CallSite.Function, "TestSetDefault", "the caller, not the package's own function")
	}
}

func TestDefault(t *testing.T) {
	t.Chdir(t.TempDir())
	tracker.Track()
	buf, err := tracker.Alloc(alloc.Shape{1024}, alloc.Float16, tracker.Activation)
	require.NoError(t, err)
	mark := tracker.Track()
	for _, c := range mark.Delta {
		assert.Equal(t, mem.Tally{Count: 1, Bytes: 2048}, c.Tally)
		assert.Contains(t, c.CallSites[0].Function, "TestDefault", "the caller, not the package's own function")
	}
	assert.Contains(t, mark.CallSite.Function, "TestDefault")
	require.NoError(t, buf.Free())
	returned, err := tracker.ClearCache()
	require.NoError(t, err)
	assert.Equal(t, 2*alloc.MiB, returned)

	first := tracker.Default()
	tr, _ := open(t, tracker.Config{})
	tracker.SetDefault(tr)
	tracker.SetDefault(nil)
	assert.Same(t, first, tracker.Default())
}

func TestBuffer(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	buf, err := tr.Alloc(alloc.Shape{3, 5}, alloc.BFloat16, tracker.Gradient)
	require.NoError(t, err)
	assert.Equal(t, alloc.Shape{3, 5}, buf.Shape())
	assert.Equal(t, alloc.BFloat16, buf.DType())
	assert.Equal(t, tracker.Gradient, buf.Allocation().Kind)
	assert.Equal(t, alloc.Bytes(30), buf.Bytes())
	assert.Equal(t, alloc.Bytes(512), buf.Allocation().Allocated)
	assert.NotZero(t, buf.Ptr())
	assert.Contains(t, buf.Allocation().Stack[0].Function, "TestBuffer")
	assert.Contains(t, buf.String(), "Gradient (3, 5) bfloat16, 30 B at 0x")
	assert.Empty(t, buf.Allocation().Label)
	buf.SetLabel("conv1")
	assert.Equal(t, "conv1", buf.Allocation().Label)
	require.NoError(t, buf.Free())
	require.ErrorIs(t, buf.Free(), alloc.ErrDoubleFree)
	assert.Zero(t, buf.Allocation().Allocated)
	assert.Contains(t, buf.Allocation().Stack[0].Function, "TestBuffer", "still")
	assert.Contains(t, buf.String(), "Gradient (3, 5) bfloat16, 30 B at 0x")
	require.NoError(t, (*tracker.Buffer)(nil).Free())
	assert.LessOrEqual(t, unsafe.Sizeof(*buf), uintptr(32), "one of the sizes of Go's allocator")
}

func TestTheShapeIsCopied(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	shape := alloc.Shape{4, 4}
	buf, err := tr.Alloc(shape, alloc.Float32, tracker.Input)
	require.NoError(t, err)
	shape[0] = 99
	assert.Equal(t, alloc.Shape{4, 4}, buf.Shape())
}

func TestRefusedRequests(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Memory: alloc.GiB})})
	_, err := tr.Alloc(alloc.Shape{2, -1}, alloc.Float32, tracker.Input)
	require.ErrorIs(t, err, alloc.ErrShape)
	_, err = tr.Alloc(alloc.Shape{2}, 0, tracker.Input)
	require.ErrorIs(t, err, alloc.ErrShape)
	_, err = tr.Alloc(alloc.Shape{2}, alloc.Float32, tracker.Kind("a\nb"))
	require.ErrorContains(t, err, `kind "a\nb": want printable UTF-8`)
	_, err = tr.AllocBytes(-1, tracker.Input)
	require.ErrorIs(t, err, alloc.ErrSize)
	_, err = tr.Alloc(alloc.Shape{1 << 30}, alloc.Float32, tracker.Input)
	var oom *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Equal(t, 4*alloc.GiB, oom.Requested)
	assert.Equal(t, alloc.GiB, oom.Total)
	assert.True(t, tr.Snapshot().Total.IsZero())

	var events []mem.Action
	for e := range tr.Dump().Events() {
		events = append(events, e.Action)
	}
	assert.Equal(t, []mem.Action{mem.Retried, mem.OutOfMemory}, events)
}

func TestUnregisterOfWhatIsNotRegistered(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	buf := take(t, tr, tracker.Input, 3)
	_, err := tr.Unregister(0xdead)
	require.ErrorIs(t, err, alloc.ErrUnknownPtr)
	_, err = tr.Unregister(buf.Ptr())
	require.ErrorIs(t, err, alloc.ErrUnknownPtr)
	require.ErrorContains(t, err, "which Free frees")
	require.ErrorIs(t, tr.Register(0, alloc.DeviceMemory, alloc.Shape{3}, alloc.Float32, tracker.Input), alloc.ErrUnknownPtr)
	require.NoError(t, buf.Free())
}

func TestRegisteredMemoryIsNotUntracked(t *testing.T) {
	dev := device(t, sim.Config{Overhead: -1})
	tr, report := open(t, tracker.Config{Device: dev})
	p, err := dev.Alloc(64 * alloc.MiB)
	require.NoError(t, err)
	assert.Equal(t, 64*alloc.MiB, tr.Track().Untracked())
	require.NoError(t, tr.Register(p, alloc.DeviceMemory, alloc.Shape{64 << 20}, alloc.Uint8, tracker.Unspecified))
	mark := tr.Track()
	assert.Zero(t, mark.Untracked())
	assert.Equal(t, 64*alloc.MiB, mark.Registered)
	assert.Contains(t, report.String(), "Total Tensor Used Memory:64.0    MiB Total Allocated Memory:64.0    MiB")
}

func TestADriverThatDoesNotSay(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, report := open(t, tracker.Config{Device: dev})
	dev.Inject(sim.Fault{Call: "MemInfo"})
	mark := tr.Track()
	assert.Equal(t, alloc.Bytes(-1), mark.DriverUsed)
	assert.Equal(t, alloc.Bytes(-1), mark.Untracked())
	assert.Contains(t, report.String(), "Driver Used Memory:unknown")
}

func TestFreeThatTheDriverRefuses(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	buf := take(t, tr, tracker.Input, 3)
	dev.Inject(sim.Fault{Call: "Free"})
	before := tr.Snapshot().Sub(nil)
	require.ErrorIs(t, buf.Free(), sim.ErrInjected)
	assert.Equal(t, before, tr.Snapshot().Sub(nil), "it is live again")
	require.NoError(t, buf.Free())
	var actions []string
	for e := range tr.Dump().Events() {
		actions = append(actions, e.Action.String())
	}
	assert.Equal(t, []string{"alloc", "free", "free_failed", "free"}, actions)
}

// TestDuplicateAddress: the driver gives an address that the ledger holds live,
// because somebody freed registered memory without telling.
func TestDuplicateAddress(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	p, err := dev.Alloc(12)
	require.NoError(t, err)
	require.NoError(t, tr.Register(p, alloc.DeviceMemory, alloc.Shape{3}, alloc.Float32, tracker.Input))
	require.NoError(t, dev.Free(p))
	used, err := dev.MemInfo()
	require.NoError(t, err)
	_, err = tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Input)
	require.ErrorIs(t, err, tracker.ErrDuplicatePtr)
	after, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Equal(t, used, after, "no byte is lost")
	assert.Equal(t, int64(1), tr.Snapshot().Live.Count)
}

func TestSumsThatOverflow(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	require.NoError(t, tr.Register(1, alloc.DeviceMemory, alloc.Shape{1 << 30, 1 << 30, 4}, alloc.Uint8, tracker.Input))
	require.ErrorContains(t, tr.Register(2, alloc.DeviceMemory, alloc.Shape{1 << 30, 1 << 30, 4}, alloc.Uint8, tracker.Input), "overflows")
	unregister(t, tr, 1)
}

func TestFreeAfterClose(t *testing.T) {
	dev := device(t, sim.Config{Overhead: -1})
	tr, _ := open(t, tracker.Config{Device: dev})
	buf := take(t, tr, tracker.Input, 3)
	require.NoError(t, tr.Close())
	_, err := tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Input)
	require.ErrorIs(t, err, alloc.ErrClosed)
	_, err = tr.ClearCache()
	require.ErrorIs(t, err, alloc.ErrClosed)
	assert.Empty(t, tr.Track().Delta)
	require.NoError(t, buf.Free())
	require.ErrorIs(t, buf.Free(), alloc.ErrDoubleFree)
	info, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Equal(t, info.Total, info.Free, "the driver has everything back")
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	if f, err := os.Create(filepath.Join(dir, "probe")); err == nil {
		f.Close()
		t.Skip("this user may write into a directory that is read-only")
	}
	_, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Dir: dir})
	require.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, dir)
}

func TestNoGoroutineStays(t *testing.T) {
	goroutines.Check(t)
	tr, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Report: io.Discard})
	require.NoError(t, err)
	take(t, tr, tracker.Input, 3)
	tr.Track()
	require.NoError(t, tr.Close())
}

func TestAllocFreeTakesOneGoAllocation(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	pair := func() {
		buf, _ := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Activation)
		buf.Free()
	}
	for range 1 << 17 { // until the history is full
		pair()
	}
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, pair), 1.0)
}
