package tracker_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// takeOn allocates bytes for a stream.
func takeOn(t *testing.T, tr *tracker.MemTracker, s alloc.Stream, n alloc.Bytes) *tracker.Buffer {
	t.Helper()
	b, err := tr.AllocOn(s, alloc.Shape{int(n)}, alloc.Uint8, tracker.Activation)
	require.NoError(t, err)
	return b
}

// queue queues work on a stream that uses a buffer.
func queue(t *testing.T, dev sim.Device, s alloc.Stream, b *tracker.Buffer, takes time.Duration) {
	t.Helper()
	require.NoError(t, dev.Queue(s, b.Ptr(), b.Bytes(), takes))
}

func TestAllocOn(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	ptrs := make(map[alloc.Stream]alloc.Ptr)
	for range 2 { // from the driver, and from the cache
		for _, s := range []alloc.Stream{0, 7, 8} {
			b := takeOn(t, tr, s, 512)
			assert.Equal(t, s, b.Allocation().Stream)
			if p, ok := ptrs[s]; ok {
				assert.Equal(t, p, b.Ptr(), "a block is used again on its stream")
			}
			ptrs[s] = b.Ptr()
			var found []alloc.Stream
			taken := tr.Snapshot()
			for a := range taken.Allocations() {
				found = append(found, a.Stream)
			}
			assert.Equal(t, []alloc.Stream{s}, found)
			live := 0
			for site := range taken.CallSites() {
				if site.Live.Count > 0 {
					live++
					assert.Equal(t, s, site.Stream)
				}
			}
			assert.Equal(t, 1, live)
			require.NoError(t, b.Free())
			assert.Zero(t, b.Allocation().Stream)
		}
	}
	var streams []alloc.Stream
	for e := range tr.Dump().Events() {
		streams = append(streams, e.Stream)
	}
	assert.Equal(t, []alloc.Stream{
		0, 0, 0, 7, 7, 7, 8, 8, 8, // a segment, a buffer, its free
		0, 0, 7, 7, 8, 8,
	}, streams)
	_, err := tr.AllocOn(9, alloc.Shape{1 << 20, 1 << 20}, alloc.Uint8, tracker.Activation)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	all := slices.Collect(tr.Dump().Events())
	assert.Equal(t, alloc.Stream(9), all[len(all)-1].Stream)
}

func TestFreeWhileOtherStreamsWork(t *testing.T) {
	free := map[string]func(b *tracker.Buffer, s alloc.Stream) error{
		"RecordStream": func(b *tracker.Buffer, s alloc.Stream) error {
			return errors.Join(b.RecordStream(b.Allocation().Stream), b.RecordStream(s), b.RecordStream(s), b.Free())
		},
		"FreeOn": (*tracker.Buffer).FreeOn,
	}
	for name, free := range free {
		t.Run(name, func(t *testing.T) {
			dev := device(t, sim.Config{CheckReuse: true})
			tr, report := open(t, tracker.Config{Device: dev})
			b := takeOn(t, tr, 1, 3*alloc.MiB)
			queue(t, dev, 2, b, time.Second)
			require.NoError(t, free(b, 2))
			tracker.VerifyNoLeaks(t, tr)
			assert.ErrorIs(t, b.Free(), alloc.ErrDoubleFree)
			assert.ErrorIs(t, b.FreeOn(2), alloc.ErrDoubleFree)
			assert.ErrorIs(t, b.RecordStream(2), alloc.ErrDoubleFree)

			assert.Equal(t, 3*alloc.MiB, tr.Track().Pending)
			assert.Contains(t, report.String(), " Pending:3.0     MiB\n")
			s := tr.Snapshot()
			assert.Equal(t, 3*alloc.MiB, s.Pending)
			assert.Zero(t, s.Allocated)
			assert.Equal(t, 3*alloc.MiB, explain.Snapshot(s).Pending)
			assert.NotEqual(t, b.Ptr(), takeOn(t, tr, 1, 3*alloc.MiB).Ptr())

			dev.Advance(time.Second)
			assert.Equal(t, b.Ptr(), takeOn(t, tr, 1, 3*alloc.MiB).Ptr(), "the work is done")
			assert.Zero(t, tr.Track().Pending)
			assert.Equal(t, 1, strings.Count(report.String(), "Pending"), "a line of its own where there is any")
			require.NoError(t, dev.Err())

			var actions []mem.Action
			for e := range tr.Dump().Events() {
				if e.Ptr == b.Ptr() && e.Action != mem.SegmentAllocated {
					actions = append(actions, e.Action)
					assert.Equal(t, alloc.Stream(1), e.Stream)
				}
			}
			assert.Equal(t, []mem.Action{mem.Allocated, mem.Freed, mem.FreeCompleted, mem.Allocated}, actions)
		})
	}
}

// TestOutOfMemoryWaitsForOtherStreams has room only in what the device still works on.
func TestOutOfMemoryWaitsForOtherStreams(t *testing.T) {
	dev := device(t, sim.Config{Memory: 20 * alloc.MiB, Overhead: -1, CheckReuse: true})
	tr, _ := open(t, tracker.Config{Device: dev})
	b := takeOn(t, tr, 1, 12*alloc.MiB)
	queue(t, dev, 2, b, time.Second)
	require.NoError(t, b.FreeOn(2))
	takeOn(t, tr, 3, 12*alloc.MiB)
	assert.Equal(t, time.Second, dev.Advance(0))
	require.NoError(t, dev.Err())
	assert.Zero(t, tr.Snapshot().Pending)
}

func TestClearCacheWaitsForOtherStreams(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev})
	b := takeOn(t, tr, 1, alloc.MiB)
	queue(t, dev, 2, b, time.Second)
	require.NoError(t, b.FreeOn(2))
	given, err := tr.ClearCache()
	require.NoError(t, err)
	assert.Equal(t, 2*alloc.MiB, given)
	assert.Equal(t, time.Second, dev.Advance(0))
}

// TestStreamsOfADeviceWithoutEvents: the program has to wait before it frees.
func TestStreamsOfADeviceWithoutEvents(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: counting.New(alloc.GiB)})
	b := takeOn(t, tr, 1, 512)
	require.ErrorIs(t, b.RecordStream(2), errors.ErrUnsupported)
	require.ErrorIs(t, b.FreeOn(2), errors.ErrUnsupported)
	assert.Equal(t, alloc.Stream(1), b.Allocation().Stream, "it is live")
	require.NoError(t, b.FreeOn(1))
	assert.Equal(t, b.Ptr(), takeOn(t, tr, 1, 512).Ptr())
}

func TestStreamsWithoutACache(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	b := takeOn(t, tr, 1, 512)
	assert.Equal(t, alloc.Stream(1), b.Allocation().Stream)
	queue(t, dev, 2, b, time.Second)
	require.NoError(t, b.RecordStream(2))
	require.NoError(t, b.FreeOn(2))
	assert.Equal(t, time.Second, dev.Advance(0), "the driver's free waits")
	assert.ErrorIs(t, b.RecordStream(2), alloc.ErrDoubleFree)
}

// wrapped is a cache that a tracker does not know to be one.
type wrapped struct{ *cache.Cache }

func TestStreamsOfADeviceThatKnowsThem(t *testing.T) {
	dev := device(t, sim.Config{CheckReuse: true})
	tr, _ := open(t, tracker.Config{Device: wrapped{cachetest.NewCache(t, dev, cache.Config{})}, NoCache: true})
	for _, free := range []func(b *tracker.Buffer) error{
		func(b *tracker.Buffer) error { return b.FreeOn(2) },
		func(b *tracker.Buffer) error { return errors.Join(b.RecordStream(2), b.Free()) },
	} {
		b := takeOn(t, tr, 1, 512)
		queue(t, dev, 2, b, time.Second)
		require.NoError(t, free(b))
		c := takeOn(t, tr, 1, 512)
		assert.NotEqual(t, b.Ptr(), c.Ptr())
		dev.Advance(time.Second)
		require.NoError(t, c.Free())
		d := takeOn(t, tr, 2, 512)
		assert.NotContains(t, []alloc.Ptr{b.Ptr(), c.Ptr()}, d.Ptr())
		require.NoError(t, d.Free())
	}
	require.NoError(t, dev.Err())
}

// TestReuseIsToldWithTheUsersLines forgets to say that another stream works on a buffer.
func TestReuseIsToldWithTheUsersLines(t *testing.T) {
	dev := device(t, sim.Config{CheckReuse: true})
	tr, _ := open(t, tracker.Config{Device: dev})
	for range 2 { // the second takes the way of what is cached
		b := takeOn(t, tr, 1, 512)
		queue(t, dev, 2, b, time.Second)
		require.NoError(t, b.Free())
	}
	assert.Regexp(t, `was handed out for stream 0x1 \(tracker_test\.takeOn stream_test\.go:\d+\), while work .* \(tracker_test\.queue stream_test\.go:\d+\)`, dev.Err())
}

// TestMoreStreamsThanCanBeTold: the last number stands for all that are too many.
func TestMoreStreamsThanCanBeTold(t *testing.T) {
	tr, _ := open(t, tracker.Config{Report: io.Discard})
	var buffers []*tracker.Buffer
	for s := range alloc.Stream(tables.MaxStreams + 10) {
		buffers = append(buffers, takeOn(t, tr, s, 512))
	}
	for s, b := range buffers {
		want := alloc.Stream(s)
		if s >= tables.MaxStreams-1 {
			want = tables.OtherStreams
		}
		assert.Equal(t, want, b.Allocation().Stream)
		require.NoError(t, b.Free())
		assert.Equal(t, b.Ptr(), takeOn(t, tr, alloc.Stream(s), 512).Ptr(), "the cache knows them all")
	}
	var text bytes.Buffer
	require.NoError(t, tr.Snapshot().WriteJSON(&text))
	read, err := snapshot.Read(&text)
	require.NoError(t, err)
	others := 0
	for a := range read.Allocations() {
		if a.Stream == tables.OtherStreams {
			others++
		}
	}
	assert.Equal(t, 11, others)
}

// TestFreedOnAStreamAfterClose gives the memory back to the driver when the work is done.
func TestFreedOnAStreamAfterClose(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev})
	b := takeOn(t, tr, 1, 512)
	require.NoError(t, tr.Close())
	queue(t, dev, 2, b, time.Second)
	require.NoError(t, b.RecordStream(2))
	require.NoError(t, b.Free())
	assert.Equal(t, time.Second, dev.Advance(0))
	live, _ := dev.Live()
	assert.Zero(t, live)
}

// TestStreamsBesideEachOther has goroutines share a tracker, each with a stream, whose buffers the
// others' streams use.
func TestStreamsBesideEachOther(t *testing.T) {
	dev := device(t, sim.Config{Memory: 96 * alloc.MiB, Overhead: -1, CheckReuse: true})
	tr, _ := open(t, tracker.Config{Device: dev, Report: io.Discard})
	var group sync.WaitGroup
	for on := range alloc.Stream(4) {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(on), 9))
			for range 300 {
				b, err := tr.AllocOn(on, alloc.Shape{random.IntN(3 << 20)}, alloc.Uint8, tracker.Activation)
				if !assert.NoError(t, err) {
					return
				}
				other := alloc.Stream(random.IntN(4))
				assert.NoError(t, dev.Queue(other, b.Ptr(), b.Bytes(), time.Duration(random.IntN(20))))
				dev.Advance(time.Duration(random.IntN(10)))
				assert.NoError(t, b.FreeOn(other))
				if random.IntN(50) == 0 {
					trackertest.RequireExact(t, tr.Snapshot())
					_, err := tr.ClearCache()
					assert.NoError(t, err)
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, dev.Err())
	_, err := tr.ClearCache()
	require.NoError(t, err)
	s := tr.Snapshot()
	assert.Zero(t, s.Reserved)
	assert.Zero(t, s.Live)
	freed, completed := 0, 0
	for e := range tr.Dump().Events() {
		switch e.Action {
		case mem.Freed:
			freed++
		case mem.FreeCompleted:
			completed++
		}
	}
	assert.Equal(t, 1200, freed)
	assert.Greater(t, completed, 100)
}

// TestStreamAfterClose: a live buffer keeps its stream when the tracker is closed.
func TestStreamAfterClose(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	b, err := tr.AllocOn(7, alloc.Shape{8}, alloc.Float32, tracker.Activation)
	require.NoError(t, err)
	b.SetKind(tracker.Gradient)
	require.NoError(t, tr.Close())
	assert.Equal(t, alloc.Stream(7), b.Allocation().Stream)
	require.NoError(t, b.Free())
	assert.Zero(t, b.Allocation().Stream)
}
