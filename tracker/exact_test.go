package tracker_test

import (
	"bytes"
	"log/slog"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestFreeAfterCloseSucceeds: the driver refuses the segment that a free after
// Close empties. The free itself has worked, and the next one gives back both.
func TestFreeAfterCloseSucceeds(t *testing.T) {
	dev := device(t, sim.Config{})
	var log bytes.Buffer
	tr, _ := open(t, tracker.Config{Device: dev, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	first, second := take(t, tr, tracker.Parameter, 8<<20), take(t, tr, tracker.Parameter, 8<<20)
	require.NoError(t, tr.Close())

	dev.Inject(sim.Fault{Call: "Free"})
	require.NoError(t, first.Free())
	require.ErrorIs(t, first.Free(), alloc.ErrDoubleFree)
	assert.Contains(t, log.String(), "could not be given back")
	require.NoError(t, second.Free())
	live, _ := dev.Live()
	assert.Zero(t, live, "all is the driver's again")
}

// TestNewClosesWhatItOpened: a device of the tracker's own is open for as long
// as one of its buffers is live.
func TestNewClosesWhatItOpened(t *testing.T) {
	tr, err := tracker.New(tracker.Config{Report: new(bytes.Buffer)})
	require.NoError(t, err)
	buf := take(t, tr, tracker.Parameter, 100)
	require.NoError(t, tr.Close())
	_, err = tr.Device().MemInfo()
	require.NoError(t, err)
	require.NoError(t, buf.Free())
	_, err = tr.Device().MemInfo()
	require.ErrorIs(t, err, alloc.ErrClosed)

	tr, err = tracker.New(tracker.Config{Report: new(bytes.Buffer)})
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	_, err = tr.Device().MemInfo()
	require.ErrorIs(t, err, alloc.ErrClosed)

	own := device(t, sim.Config{})
	tr, _ = open(t, tracker.Config{Device: own})
	require.NoError(t, tr.Close())
	_, err = own.MemInfo()
	require.NoError(t, err, "the caller's device stays open")
}

func TestMemoryWhoseFreeFailsIsPutBack(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	require.NoError(t, tr.Register(512, alloc.DeviceMemory, alloc.Shape{8}, alloc.Float32, tracker.Parameter))
	before := tr.Snapshot().Sub(nil)
	putBack := unregister(t, tr, 512)
	assert.Zero(t, tr.Snapshot().Live)
	require.NoError(t, putBack())
	assert.Equal(t, before, tr.Snapshot().Sub(nil), "it is live again")
	unregister(t, tr, 512)
}

// TestPutBackTellsOfANewOwner: memory that is registered anew while its free is
// under way stays the new owner's, and who puts it back is told.
func TestPutBackTellsOfANewOwner(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	require.NoError(t, tr.Register(512, alloc.DeviceMemory, alloc.Shape{8}, alloc.Float32, tracker.Parameter))
	putBack := unregister(t, tr, 512)
	require.NoError(t, tr.Register(512, alloc.DeviceMemory, alloc.Shape{3}, alloc.Float32, tracker.Activation))
	require.ErrorIs(t, putBack(), tracker.ErrDuplicatePtr)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 12}, tr.Snapshot().Live)
	trackertest.RequireExact(t, tr.Snapshot())
}

// scripted is a device that gives the addresses it is told to.
type scripted struct {
	alloc.Device
	give  []alloc.Ptr
	freed []alloc.Ptr
}

func (d *scripted) Alloc(alloc.Bytes) (alloc.Ptr, error) {
	p := d.give[0]
	d.give = d.give[1:]
	return p, nil
}

func (d *scripted) Free(p alloc.Ptr) error {
	d.freed = append(d.freed, p)
	return nil
}

// TestBrokenDeviceWithoutACache: what cannot be is an error, and is left alone:
// it may be somebody's.
func TestBrokenDeviceWithoutACache(t *testing.T) {
	dev := &scripted{Device: device(t, sim.Config{}), give: []alloc.Ptr{0, 512, 512, 1024}}
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	one := func() (*tracker.Buffer, error) { return tr.Alloc(alloc.Shape{4}, alloc.Float32, tracker.Input) }
	_, err := one()
	require.ErrorIs(t, err, alloc.ErrBrokenDriver, "address 0")
	first, err := one()
	require.NoError(t, err)
	_, err = one()
	require.ErrorIs(t, err, alloc.ErrBrokenDriver, "a live Buffer's address")
	require.ErrorIs(t, err, tracker.ErrDuplicatePtr)
	assert.Empty(t, dev.freed)
	second, err := one()
	require.NoError(t, err)
	assert.Equal(t, int64(2), tr.Snapshot().Live.Count)
	require.NoError(t, first.Free())
	require.NoError(t, second.Free())
	assert.Equal(t, []alloc.Ptr{512, 1024}, dev.freed)
}

func TestTheCacheRefusesToFreeABuffer(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	buf := take(t, tr, tracker.Parameter, 10)
	require.ErrorIs(t, tr.Device().Free(buf.Ptr()), cachelock.ErrOwned)
	require.ErrorIs(t, tr.Register(buf.Ptr(), alloc.DeviceMemory, buf.Shape(), buf.DType(), buf.Allocation().Kind), tracker.ErrDuplicatePtr)
	_, err := tr.Unregister(buf.Ptr())
	require.ErrorIs(t, err, alloc.ErrUnknownPtr)
	require.NoError(t, buf.Free())

	p, err := tr.Device().Alloc(40)
	require.NoError(t, err)
	require.NoError(t, tr.Register(p, alloc.DeviceMemory, alloc.Shape{10}, alloc.Float32, tracker.Parameter), "memory of others, from the same cache")
	unregister(t, tr, p)
	require.NoError(t, tr.Device().Free(p))
}

// TestTotalsSaturate: only what is live may keep an allocation from being
// counted, never what was.
func TestTotalsSaturate(t *testing.T) {
	dev := &scripted{Device: device(t, sim.Config{}), give: []alloc.Ptr{512, 512, 512, 512, 512}}
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	s := tr.Section("huge")
	for range 5 {
		buf, err := tr.Alloc(alloc.Shape{1 << 30, 1 << 30}, alloc.Float32, tracker.Input) // 4 EiB
		require.NoError(t, err)
		require.NoError(t, buf.Free())
	}
	s.End()
	snapshot := tr.Snapshot()
	assert.Equal(t, alloc.Bytes(math.MaxInt64), snapshot.Total.Bytes)
	assert.EqualValues(t, 5, snapshot.Total.Count)
	for site := range snapshot.CallSites() {
		assert.Equal(t, alloc.Bytes(math.MaxInt64), site.Total.Bytes)
	}
}

// TestClockMayUseTheTracker: nothing is locked while the clock is asked.
func TestClockMayUseTheTracker(t *testing.T) {
	var tr *tracker.MemTracker
	var asked, inside atomic.Bool
	now := func() time.Time {
		if asked.Load() && inside.CompareAndSwap(false, true) {
			defer inside.Store(false)
			tr.Snapshot()
			tr.Dump()
			tr.Track()
			_ = tr.Err()
			buf, err := tr.AllocBytes(100, tracker.Temporary)
			assert.NoError(t, err)
			assert.NoError(t, buf.Free())
			_, err = tr.ClearCache()
			assert.NoError(t, err)
		}
		return time.Now()
	}
	dev := device(t, sim.Config{Memory: alloc.GiB})
	tr, _ = open(t, tracker.Config{Device: dev, Clock: now, FindUnreachable: true})
	asked.Store(true)
	s := tr.Section("all")
	buf := take(t, tr, tracker.Parameter, 10)
	tr.Track()
	_, err := tr.Alloc(alloc.Shape{1 << 15, 1 << 15}, alloc.Float32, tracker.Input) // 4 GiB
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.NoError(t, tr.Register(1, alloc.DeviceMemory, alloc.Shape{1}, alloc.Float32, tracker.Input))
	unregister(t, tr, 1)
	require.NoError(t, buf.Free())
	s.End()
	tr.Profile()
	asked.Store(false)
}

// TestUnreachableBuffersAreFreedAfterClose: Config.FreeUnreachable holds for what is still live.
func TestUnreachableBuffersAreFreedAfterClose(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev, FreeUnreachable: true, Logger: slog.New(slog.DiscardHandler)})
	for range 10 {
		take(t, tr, tracker.Activation, 1<<18)
	}
	require.NoError(t, tr.Close())
	for {
		runtime.GC()
		if live, _ := dev.Live(); live == 0 {
			return
		}
		time.Sleep(time.Millisecond) // cleanups run in a goroutine of the runtime's
	}
}
