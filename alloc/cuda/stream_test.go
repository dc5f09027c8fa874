//go:build linux

package cuda_test

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// streamed is an emulated device whose clock the test moves.
type streamed struct {
	*cuda.Opened
	*gpuemu.Control
}

func (d streamed) Close() error { return d.Opened.Close() }

func (d streamed) Unwrap() alloc.Device { return d.Opened }

func (d streamed) Advance(by time.Duration) time.Duration {
	d.Control.Advance(by)
	return d.Control.Now()
}

func (d streamed) Work(on alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) error {
	return gpuemu.Queue(gpuemu.Work{Stream: uint64(on), Ptr: uint64(p), Size: uint64(n), Time: takes})
}

// standstill opens a device on which no time passes. Only a process of its own has one.
func standstill(t *testing.T) streamed {
	t.Helper()
	d := streamed{open(t), control(t)}
	d.HoldClock()
	return d
}

func newStream(t *testing.T) alloc.Stream {
	t.Helper()
	s, err := gpuemu.NewStream(0)
	require.NoError(t, err)
	return alloc.Stream(s)
}

func TestRecordEvent(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	first, second := newStream(t), newStream(t)
	done := func(e capability.Event) bool {
		is, err := e.Done()
		require.NoError(t, err)
		return is
	}
	record := func(s alloc.Stream) capability.Event {
		e, err := dev.RecordEvent(s)
		require.NoError(t, err)
		return e
	}
	assert.True(t, done(record(first)), "nothing is queued")
	require.NoError(t, dev.Work(first, 0, 0, 10))
	require.NoError(t, dev.Work(second, 0, 0, 25))
	a, b, all := record(first), record(second), record(0)
	require.NoError(t, dev.Work(first, 0, 0, time.Hour))
	assert.Equal(t, 3, dev.Events(os.Getpid()))
	dev.Advance(9)
	assert.False(t, done(a))
	dev.Advance(1)
	assert.True(t, done(a))
	assert.True(t, done(a), "to ask again is no error")
	assert.False(t, done(b))
	require.NoError(t, b.Wait())
	assert.Equal(t, time.Duration(25), dev.Now())
	assert.True(t, done(all), "the default stream waits for all")
	assert.Zero(t, dev.Events(os.Getpid()), "events that have passed are destroyed")

	late := record(first)
	require.NoError(t, dev.Close())
	assert.Zero(t, dev.Events(os.Getpid()), "Close destroys the others")
	_, err := late.Done()
	assert.ErrorIs(t, err, alloc.ErrClosed)
	_, err = dev.RecordEvent(first)
	assert.ErrorIs(t, err, alloc.ErrClosed)
}

const legacy, perThread alloc.Stream = 1, 2 // CU_STREAM_LEGACY, CU_STREAM_PER_THREAD

// TestStreamsOfTheDriver: the handles that the driver has from the beginning. One of them is another stream on each thread, which
// caches and pools refuse: nothing is allocated, freed or left waiting then.
func TestStreamsOfTheDriver(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	runtime.LockOSThread()
	dev := standstill(t)
	done := func(s alloc.Stream) bool {
		e, err := dev.RecordEvent(s)
		require.NoError(t, err)
		is, err := e.Done()
		require.NoError(t, err)
		return is
	}
	require.NoError(t, dev.Work(perThread, 0, 0, 10))
	assert.False(t, done(perThread))
	assert.False(t, done(legacy), "it waits for all")
	var elsewhere sync.WaitGroup
	elsewhere.Go(func() {
		runtime.LockOSThread()
		assert.True(t, done(perThread), "nothing is queued on this thread")
	})
	elsewhere.Wait()
	dev.Advance(10)
	assert.True(t, done(perThread))

	assert.Equal(t, perThread, dev.StreamOfThread())
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	require.NoError(t, err)
	_, err = tr.AllocOn(perThread, alloc.Shape{1}, alloc.Float32, tracker.Input)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "create a stream")
	b, err := tr.AllocOn(legacy, alloc.Shape{1}, alloc.Float32, tracker.Input)
	require.NoError(t, err)
	require.ErrorIs(t, b.RecordStream(perThread), errors.ErrUnsupported)
	require.ErrorIs(t, b.FreeOn(perThread), errors.ErrUnsupported)
	require.NoError(t, b.Free(), "what was refused has changed nothing")
	require.NoError(t, tr.Close())

	pool, err := dev.NewPool(cuda.PoolConfig{})
	require.NoError(t, err)
	_, _, err = pool.AllocOn(alloc.MiB, perThread)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	p, _, err := pool.AllocOn(alloc.MiB, legacy)
	require.NoError(t, err)
	require.ErrorIs(t, pool.RecordStream(p, perThread), errors.ErrUnsupported)
	require.NoError(t, pool.Free(p))
	require.NoError(t, pool.Close())
}

// TestEventCallsFail has each driver call of an event fail: no event is left, and the next try works.
func TestEventCallsFail(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	s := newStream(t)
	for _, function := range []string{"cuEventCreate", "cuEventRecord"} {
		fail(t, dev.Control, function, 719)
		_, err := dev.RecordEvent(s)
		assert.ErrorIs(t, err, cuda.ErrDeviceLost, function)
		assert.ErrorContains(t, err, "record an event on stream 0x")
		dev.Heal()
	}
	e, err := dev.RecordEvent(s)
	require.NoError(t, err)
	fail(t, dev.Control, "cuEventQuery", 719)
	is, err := e.Done()
	assert.ErrorIs(t, err, cuda.ErrDeviceLost)
	assert.False(t, is)
	fail(t, dev.Control, "cuEventSynchronize", 400)
	assert.ErrorIs(t, e.Wait(), cuda.Error(400))
	assert.Equal(t, 1, dev.Events(os.Getpid()))
	dev.Heal()
	fail(t, dev.Control, "cuEventDestroy_v2", 400)
	is, err = e.Done()
	require.NoError(t, err, "the work is done, whatever becomes of the event")
	assert.True(t, is)
}

// TestCacheWithEventsThatFail has blocks stay pending while the driver does not tell of their streams.
func TestCacheWithEventsThatFail(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	s := newStream(t)
	for _, function := range []string{"cuEventCreate", "cuEventRecord", "cuEventQuery"} {
		cache := cachetest.NewCache(t, dev, cache.Config{})
		p, _, err := cache.AllocOn(alloc.MiB, 0)
		require.NoError(t, err)
		require.NoError(t, dev.Work(s, p, alloc.MiB, 10))
		require.NoError(t, cache.RecordStream(p, s))
		require.NoError(t, dev.Fail(gpuemu.Fault{Function: function, From: 1, Onward: true, Code: 999}))
		require.NoError(t, cache.Free(p))
		dev.Advance(time.Hour)
		cache.Locked().Poll()
		assert.Equal(t, alloc.MiB, cache.Stats().Pending.Bytes.Current, function)
		dev.Heal()
		cache.Locked().Poll()
		assert.Zero(t, cache.Stats().Pending.Bytes.Current, function)
		require.NoError(t, cache.Close())
		assert.Zero(t, dev.Events(os.Getpid()))
	}
}

func TestStreamPrograms(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 128 << 20, Context: 32 << 20}) {
		return
	}
	dev := standstill(t)
	streams := []alloc.Stream{newStream(t), newStream(t), newStream(t)}
	trackertest.Streams(t, streams, func(require.TestingT) (cachetest.StreamDevice, func()) {
		require.NoError(t, dev.Synchronize())
		return dev, func() {}
	})
	assert.Zero(t, dev.Events(os.Getpid()))
	live, err := gpuemu.Live()
	require.NoError(t, err)
	assert.Empty(t, live)
}

// TestFill: a fill comes behind what its stream has to do.
func TestFill(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	s, other := newStream(t), newStream(t)
	p, err := dev.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, gpuemu.Queue(gpuemu.Work{Stream: uint64(s), Ptr: uint64(p), Size: 4, Time: 10, Writes: true, Value: 'a'}))
	require.NoError(t, dev.Fill(p, 2, 'b', s))
	require.NoError(t, gpuemu.Queue(gpuemu.Work{Stream: uint64(other), Ptr: uint64(p + 1), Size: 1, Time: 20, Writes: true, Value: 'c'}))
	b := make([]byte, 4)
	require.NoError(t, dev.CopyToHost(b, p), "which waits for all streams")
	assert.Equal(t, "bcaa", string(b))
	assert.GreaterOrEqual(t, dev.Now(), time.Duration(20))
	assert.ErrorIs(t, dev.Fill(p, 5, 0, s), alloc.ErrUnknownPtr)
	require.NoError(t, dev.Fill(p, 0, 0, s))
	assert.ErrorIs(t, dev.Fill(p, -1, 0, s), alloc.ErrSize)
	fail(t, dev.Control, "cuMemsetD8Async", 719)
	assert.ErrorIs(t, dev.Fill(p, 1, 0, s), cuda.ErrDeviceLost)
}

func TestLateWrites(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	trackertest.LateWrites(t, trackertest.Writer{
		Device: dev, Streams: [2]alloc.Stream{newStream(t), newStream(t)}, Advance: func(by time.Duration) { dev.Advance(by) },
		Write: func(s alloc.Stream, p alloc.Ptr, n alloc.Bytes) error {
			return gpuemu.Queue(gpuemu.Work{Stream: uint64(s), Ptr: uint64(p), Size: uint64(n), Time: time.Millisecond, Writes: true, Value: 1})
		},
	})
}

func TestSeveralDevices(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Devices: 2}) {
		return
	}
	second, err := cuda.Open(1)
	require.NoError(t, err)
	first := open(t)
	trackertest.Several(t, first, second)
	fail(t, control(t), "cuMemcpyPeer", 719)
	p, err := first.Alloc(4)
	require.NoError(t, err)
	assert.ErrorIs(t, first.CopyFrom(p, second, p, 4), cuda.ErrDeviceLost)
	assert.ErrorIs(t, first.CopyFrom(p, counting.New(0), p, 4), errors.ErrUnsupported)
	require.NoError(t, first.CopyFrom(p, second, p, 0))
	require.NoError(t, second.Close())
}
