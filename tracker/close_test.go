package tracker_test

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestAClosedTrackerPassesNoTest: it knows of no memory, which is not to say
// that none leaked.
func TestAClosedTrackerPassesNoTest(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	take(t, tr, tracker.Activation, 1024)
	require.NoError(t, tr.Close())
	for _, check := range []func(*verdict){
		func(v *verdict) { tracker.VerifyNoLeaks(v, tr) },
		func(v *verdict) { tracker.LimitPeak(v, tr, 0) },
	} {
		var v verdict
		check(&v)
		assert.Contains(t, v.text, "the tracker is closed already")
	}
}

func TestAClosedTrackerTakesAndDumpsNothing(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev})
	before, err := dev.MemInfo()
	require.NoError(t, err)
	require.NoError(t, tr.Close())

	_, err = tr.Alloc(alloc.Shape{1 << 20, 1 << 21}, alloc.Uint8, tracker.Input) // twice what sim has
	require.ErrorIs(t, err, alloc.ErrClosed, "not out of memory")
	_, err = tr.Alloc(alloc.Shape{8}, alloc.Float32, tracker.Input)
	require.ErrorIs(t, err, alloc.ErrClosed)
	after, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Equal(t, before, after)

	dir := t.TempDir()
	_, err = tr.DumpFile(dir, "")
	require.ErrorIs(t, err, alloc.ErrClosed)
	assert.Empty(t, files(t, dir))
}

// timed counts the intervals that were begun and not released by Elapsed.
type timed struct {
	cachetest.Device
	held atomic.Int64
}

func (d *timed) StartInterval() (capability.Interval, error) {
	i, err := d.Device.StartInterval()
	d.held.Add(1)
	return timedInterval{i, d}, err
}

type timedInterval struct {
	capability.Interval
	device *timed
}

func (i timedInterval) Elapsed() (time.Duration, error) {
	i.device.held.Add(-1)
	return i.Interval.Elapsed()
}

func TestCloseReleasesTheDevicesEvents(t *testing.T) {
	dev := &timed{Device: device(t, sim.Config{})}
	tr, _ := open(t, tracker.Config{Device: dev})
	open := tr.Section("open")
	for range 600 {
		tr.Do("ended", func() {})
	}
	assert.LessOrEqual(t, dev.held.Load(), int64(300), "it does not pile up")
	require.NoError(t, tr.Close())
	assert.Zero(t, dev.held.Load(), "Close ends what is open")
	open.End()
	assert.Zero(t, dev.held.Load())
}

// TestCloseInTheMidst closes a tracker while everything else is being asked of
// it: nothing may fail except for the closing, and nothing stay allocated.
func TestCloseInTheMidst(t *testing.T) {
	dev := device(t, sim.Config{Memory: alloc.GiB, Overhead: -1})
	tr, _ := open(t, tracker.Config{
		Device: dev, MaxEvents: 100, MaxMarks: 3, OOMDir: t.TempDir(), Sections: tracker.SectionConfig{Host: "none"},
	})
	var group sync.WaitGroup
	for _, ask := range []func(*testing.T, *tracker.MemTracker){work, work, work, work, look, mark, tell} {
		group.Go(func() {
			for range 200 {
				ask(t, tr)
			}
		})
	}
	for tr.LightSnapshot().Total.Count < 100 {
		runtime.Gosched()
	}
	require.NoError(t, tr.Close())
	group.Wait()
	info, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Zero(t, info.Used())
}

func unlessClosedOrFull(t *testing.T, err error) {
	if !errors.Is(err, alloc.ErrClosed) && !errors.Is(err, alloc.ErrOutOfMemory) {
		assert.NoError(t, err)
	}
}

func work(t *testing.T, tr *tracker.MemTracker) {
	whole := tr.Section("whole")
	part := whole.Section("part")
	go whole.End()
	buf, err := tr.AllocBytes(300*alloc.MiB, tracker.Activation)
	unlessClosedOrFull(t, err)
	whole.Data()
	assert.NoError(t, buf.Free())
	part.End()
	part.Data()
}

func look(t *testing.T, tr *tracker.MemTracker) {
	s := tr.Snapshot()
	assert.LessOrEqual(t, s.Allocated, s.Reserved)
	trackertest.RequireExact(t, s)
}

func mark(t *testing.T, tr *tracker.MemTracker) {
	tr.Track()
	tr.ResetPeak()
	_, err := tr.ClearCache()
	unlessClosedOrFull(t, err)
}

func tell(t *testing.T, tr *tracker.MemTracker) {
	require.NoError(t, tr.Dump().WriteJSON(io.Discard))
	tr.Profile()
	tr.Leaks()
}
