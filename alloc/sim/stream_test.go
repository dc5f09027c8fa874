package sim_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

func done(t *testing.T, e capability.Event) bool {
	is, err := e.Done()
	require.NoError(t, err)
	return is
}

func event(t *testing.T, dev *sim.Simulated, s alloc.Stream) capability.Event {
	e, err := dev.RecordEvent(s)
	require.NoError(t, err)
	return e
}

func TestStreamsRunSideBySide(t *testing.T) {
	dev := open(t, sim.Config{})
	assert.True(t, done(t, event(t, dev, 1)), "nothing is queued")
	for _, w := range []struct {
		on    alloc.Stream
		takes time.Duration
	}{{1, 10}, {2, 15}, {1, 20}} {
		require.NoError(t, dev.Queue(w.on, 0, 0, w.takes))
	}
	first, second := event(t, dev, 1), event(t, dev, 2)
	require.NoError(t, dev.Queue(1, 0, 0, 100))
	for _, step := range []struct {
		by            time.Duration
		first, second bool
	}{{14, false, false}, {1, false, true}, {14, false, true}, {1, true, true}} {
		dev.Advance(step.by)
		assert.Equal(t, step.first, done(t, first), "at %v", dev.Advance(0))
		assert.Equal(t, step.second, done(t, second), "at %v", dev.Advance(0))
	}
	dev.Advance(-5)
	assert.Equal(t, time.Duration(30), dev.Advance(0))
}

func TestWaitingMovesTheClock(t *testing.T) {
	dev := open(t, sim.Config{})
	p, q := mustAlloc(t, dev, alloc.MiB), mustAlloc(t, dev, alloc.MiB)
	queue := func() capability.Event {
		require.NoError(t, dev.Queue(3, 0, 0, 10))
		return event(t, dev, 3)
	}
	require.NoError(t, queue().Wait())
	assert.Equal(t, time.Duration(10), dev.Advance(0))
	queue()
	require.NoError(t, dev.Synchronize())
	assert.Equal(t, time.Duration(20), dev.Advance(0))
	queue()
	require.NoError(t, dev.Free(p))
	assert.Equal(t, time.Duration(30), dev.Advance(0))
	queue()
	assert.Error(t, dev.Free(p))
	dev.Inject(sim.Fault{Call: "Free"}, sim.Fault{Call: "Synchronize"})
	assert.Error(t, dev.Free(q))
	assert.Error(t, dev.Synchronize())
	assert.Equal(t, time.Duration(30), dev.Advance(0), "a call that fails does not wait")
}

func TestStreamFaults(t *testing.T) {
	dev := open(t, sim.Config{})
	e := event(t, dev, 1)
	dev.Inject(sim.Fault{Call: "Event", Times: 3}, sim.Fault{Call: "Queue"})
	_, err := dev.RecordEvent(1)
	assert.ErrorIs(t, err, sim.ErrInjected)
	_, err = e.Done()
	assert.ErrorIs(t, err, sim.ErrInjected)
	assert.ErrorIs(t, e.Wait(), sim.ErrInjected)
	assert.ErrorIs(t, dev.Queue(0, 0, 0, 0), sim.ErrInjected)
	require.NoError(t, dev.Close())
	assert.ErrorIs(t, dev.Queue(0, 0, 0, 0), alloc.ErrClosed)
	assert.ErrorIs(t, e.Wait(), alloc.ErrClosed)
}

// TestFillsWait: what fills write is there when the work before them is done, in the order of its end.
func TestFillsWait(t *testing.T) {
	dev := open(t, sim.Config{Backed: true})
	p := mustAlloc(t, dev, 4)
	holds := func() string {
		b := make([]byte, 4)
		require.NoError(t, dev.CopyToHost(b, p))
		return string(b)
	}
	require.NoError(t, dev.Fill(p, 4, 'a', 0))
	assert.Equal(t, "aaaa", holds(), "nothing is queued before it")
	require.NoError(t, dev.Queue(1, 0, 0, 20))
	require.NoError(t, dev.Fill(p+1, 1, 'b', 1))
	require.NoError(t, dev.Queue(2, 0, 0, 10))
	require.NoError(t, dev.Fill(p, 2, 'c', 2))
	require.NoError(t, dev.Fill(p+3, 1, 'd', 1))
	assert.Equal(t, "aaaa", holds())
	dev.Advance(10)
	assert.Equal(t, "ccaa", holds())
	dev.Advance(100)
	assert.Equal(t, "cbad", holds())
	require.NoError(t, dev.Queue(1, 0, 0, 20))
	require.NoError(t, dev.Fill(p, 4, 'e', 1))
	require.NoError(t, dev.Queue(2, 0, 0, 10))
	require.NoError(t, dev.Fill(p, 2, 'f', 2))
	require.NoError(t, dev.Synchronize())
	assert.Equal(t, "eeee", holds())

	dev.Inject(sim.Fault{Call: "Fill"})
	assert.ErrorIs(t, dev.Fill(p, 1, 0, 0), sim.ErrInjected)
	assert.ErrorIs(t, dev.Fill(p+1, 4, 0, 0), alloc.ErrUnknownPtr)
	assert.ErrorIs(t, open(t, sim.Config{}).Fill(p, 1, 0, 0), errors.ErrUnsupported)
	assert.ErrorIs(t, dev.Fill(p, -1, 0, 0), alloc.ErrSize)
}

// TestWorkThatNeverEnds: the clock stops at its last time, and does not begin anew.
func TestWorkThatNeverEnds(t *testing.T) {
	dev := open(t, sim.Config{})
	dev.Advance(time.Second)
	for range 2 {
		require.NoError(t, dev.Queue(1, 0, 0, math.MaxInt64))
	}
	last := event(t, dev, 1)
	assert.False(t, done(t, last))
	dev.Advance(math.MaxInt64)
	assert.Equal(t, time.Duration(math.MaxInt64), dev.Advance(0))
	assert.True(t, done(t, last))
}
