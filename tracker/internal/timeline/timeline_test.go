package timeline_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// sum adds layers up.
func sum(layers []timeline.Layer, i int) (all alloc.Bytes) {
	for _, l := range layers {
		all += l.Bytes[i]
	}
	return all
}

// TestTimelineFollowsTheHistory of random programs, of which the history has all
// or only the end: each moment is one that a walk through the events finds.
func TestTimelineFollowsTheHistory(t *testing.T) {
	kinds := append(mem.Kinds(), "KVCache", "Workspace", "Logits", "Mask")
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		tr := exporttest.New(t, tracker.Config{MaxEvents: []int{1 << 20, 500}[seed%2]})
		var live []*tracker.Buffer
		for range 3000 {
			if n := len(live); n > 0 && random.IntN(5) < 2 {
				i := random.IntN(n)
				require.NoError(t, live[i].Free())
				live = slices.Delete(live, i, i+1)
				continue
			}
			b, err := tr.AllocBytes(alloc.Bytes(1+random.IntN(1000)), kinds[random.IntN(len(kinds))])
			require.NoError(t, err)
			live = append(live, b)
		}
		r := tr.Dump()
		line := timeline.New(r)

		possible := map[alloc.Bytes]bool{}
		level, highest := r.Snapshot.Live.Bytes, r.Snapshot.Live.Bytes
		events := slices.Collect(r.Events())
		for _, e := range slices.Backward(events) { // back from now
			possible[level] = true
			highest = max(highest, level)
			switch e.Action {
			case mem.Allocated:
				level -= e.Requested
			case mem.Freed:
				level += e.Requested
			}
		}
		possible[level] = true
		highest = max(highest, level)

		most := alloc.Bytes(0)
		for i := range line.Seconds {
			of := sum(line.Kinds, i)
			require.True(t, possible[of], "a level that never was")
			require.Equal(t, of, sum(line.Sites, i))
			require.GreaterOrEqual(t, *line.Allocated[i], of)
			most = max(most, of)
		}
		assert.Equal(t, highest, most, "no peak is lost")
		assert.Equal(t, r.Snapshot.Live.Bytes, sum(line.Kinds, len(line.Seconds)-1))
		assert.Equal(t, level, sum(line.Kinds, 0))
		assert.True(t, slices.IsSorted(line.Seconds))
		assert.LessOrEqual(t, len(line.Kinds), 9)
		assert.Equal(t, "other kinds", line.Kinds[len(line.Kinds)-1].Name, "there are more than eight")
		if highest == r.Snapshot.Peak.Bytes {
			require.NotNil(t, line.Peak)
			assert.Equal(t, highest, line.Peak.Bytes)
		}
	}
}

func TestTimelineIsBounded(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	step := time.Hour
	tr := exporttest.New(t, tracker.Config{MaxEvents: 1 << 20, Clock: func() time.Time {
		step = -step // a clock that jumps
		return now.Add(step)
	}})
	for range 20_000 {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		require.NoError(t, b.Free())
	}
	for range 2000 {
		tr.Track()
	}
	line := timeline.New(tr.Dump())
	assert.True(t, slices.IsSorted(line.Seconds))
	assert.Less(t, len(line.Seconds), 1500)
	assert.Len(t, line.Marks, 500)
	assert.Equal(t, 2000, line.Marks[499].Mark)
}

// TestTimelineWithoutThePeak: it was before the first event that is left.
func TestTimelineWithoutThePeak(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxEvents: 10})
	big, err := tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	require.NoError(t, big.Free())
	for range 20 {
		_, err := tr.AllocBytes(alloc.KiB, tracker.Input)
		require.NoError(t, err)
	}
	line := timeline.New(tr.Dump())
	assert.Nil(t, line.Peak)
	assert.Equal(t, 10*alloc.KiB, sum(line.Kinds, 0))
}

// busyDevice lets something happen while it is asked for its memory.
type busyDevice struct {
	alloc.Device
	meanwhile func()
}

func (d *busyDevice) MemInfo() (alloc.MemInfo, error) {
	if f := d.meanwhile; f != nil {
		d.meanwhile = nil
		f()
	}
	return d.Device.MemInfo()
}

// TestLevelsBeforeTheHistory: a snapshot asks the device a moment before it
// copies the ledger, and the history may tell of segments of that moment.
func TestLevelsBeforeTheHistory(t *testing.T) {
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	device := &busyDevice{Device: gpu}
	tr := exporttest.New(t, tracker.Config{Device: device})
	device.meanwhile = func() {
		_, err := tr.AllocBytes(1000, tracker.Input)
		require.NoError(t, err)
	}
	line := timeline.New(tr.Dump())
	require.NotNil(t, line.Reserved[0], "the events tell of segments")
	assert.Zero(t, *line.Reserved[0])
	assert.Zero(t, *line.Allocated[0])
}

// TestTimesDoNotDecreaseWhenAClockJumps: the events of a file may have any times. The chart keeps them in their order,
// between the first event and the snapshot.
func TestTimesDoNotDecreaseWhenAClockJumps(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	for i := range 200 {
		b, err := tr.AllocBytes(alloc.Bytes(1+i), tracker.Input)
		require.NoError(t, err)
		if i%3 == 0 {
			require.NoError(t, b.Free())
		}
		if i%20 == 0 {
			tr.Track()
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for name, jump := range map[string]func(i int) time.Duration{
		"forth and back": func(int) time.Duration { return time.Duration(random.Int64N(int64(2 * time.Hour))) },
		"back, once":     func(i int) time.Duration { return time.Duration(i%100) * time.Second },
		"before the start and after the end": func(int) time.Duration {
			return time.Duration(random.Int64N(int64(4*time.Hour))) - 2*time.Hour
		},
		"ever earlier": func(i int) time.Duration { return time.Duration(1000-i) * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			d := tr.Dump()
			h := tables.OfHistory(&d.History)
			h.Events = slices.Clone(h.Events)
			for i := range h.Events {
				h.Events[i].Since = jump(i)
			}
			d.Snapshot.Time = h.Start.Add(time.Hour)
			line := timeline.New(d)
			end := line.Seconds[len(line.Seconds)-1]
			assert.True(t, slices.IsSorted(line.Seconds))
			assert.GreaterOrEqual(t, line.Seconds[0], 0.0)
			assert.InDelta(t, max(0, d.Snapshot.Time.Sub(line.Start).Seconds()), end, 1e-6)
			assert.Equal(t, d.Snapshot.Live.Bytes, sum(line.Kinds, len(line.Seconds)-1))
			assert.True(t, slices.IsSortedFunc(line.Marks, func(a, b timeline.Moment) int { return cmp.Compare(a.Seconds, b.Seconds) }))
			require.NotEmpty(t, line.Marks)
			assert.LessOrEqual(t, line.Marks[len(line.Marks)-1].Seconds, end)
			assert.True(t, slices.IsSorted(line.Events), "and the events stay in their order")
		})
	}
}

// TestTheFirstOfEqualPeaks is the one that is drawn: it is the peak of the snapshot, and of all that shows one.
func TestTheFirstOfEqualPeaks(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 3))
		now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
		tr := exporttest.New(t, tracker.Config{MaxEvents: 1 << 20, Clock: func() time.Time {
			now = now.Add(time.Duration(1+random.IntN(3)) * time.Second)
			return now
		}})
		var live []*tracker.Buffer
		for range 5000 {
			if n := len(live); n == 3 || n > 0 && random.IntN(2) == 0 {
				require.NoError(t, live[n-1].Free())
				live = live[:n-1]
				continue
			}
			b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
			require.NoError(t, err)
			live = append(live, b)
		}
		d := tr.Dump()
		level, most, first := alloc.Bytes(0), alloc.Bytes(0), uint64(0)
		var since time.Duration
		var start time.Time
		for e := range d.Events() {
			if start.IsZero() {
				start = e.Time
			}
			switch e.Action {
			case mem.Allocated:
				level += e.Requested
			case mem.Freed:
				level -= e.Requested
			}
			if level > most {
				most, first, since = level, e.Seq+1, e.Time.Sub(start)
			}
		}
		line := timeline.New(d)
		i := 0
		for sum(line.Kinds, i) < most {
			i++
		}
		assert.Equal(t, first, line.Events[i], "seed %d", seed)
		require.NotNil(t, line.Peak)
		assert.InDelta(t, since.Seconds(), line.Peak.Seconds, 1e-6)
		assert.InDelta(t, line.Peak.Seconds, line.Seconds[i], 1e-6)
	}
}
