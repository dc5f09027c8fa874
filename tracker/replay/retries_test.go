package replay_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// TestRetryIsNotAnEmptyCache has a segment of 60 MiB go back right before one of 80 MiB comes. On a
// device with room for both, a request that the driver refused needs no emptied cache any
// more; a program that empties it does so there too.
func TestRetryIsNotAnEmptyCache(t *testing.T) {
	const unknown, request, program = 0, 1, 2 // call stacks
	for name, c := range map[string]struct {
		freed, allocated tables.StackID
		oom              bool
		retries          int64 // as recorded
		frees            int64 // on the larger device
	}{
		"a request's":              {request, request, false, 1, 0},
		"a request's that failed":  {request, request, true, 1, 0},
		"the program's":            {program, request, false, 0, 1},
		"of which it is not known": {unknown, unknown, false, -1, 1},
		"known of one":             {unknown, request, false, -1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, 1, 100*alloc.MiB, cache.Config{}, 1)
			line := mem.Frame{Function: "main.clear", File: "main.go", Line: 9}
			require.Equal(t, tables.StackID(program), p.stacks.Add(mem.Stack{line}, line))
			p.alloc(60 * alloc.MiB)
			p.free(0)
			next := 80 * alloc.MiB
			if c.oom {
				next = 120 * alloc.MiB
			}
			p.alloc(next)
			for i := range p.events {
				switch e := &p.events[i]; e.Action {
				case mem.SegmentFreed:
					e.Stack = c.freed
				case mem.SegmentAllocated:
					e.Stack = c.allocated
				}
			}
			small, err := replay.Run(p.dump(0), replay.Config{Memory: 100 * alloc.MiB})
			require.NoError(t, err)
			assert.Equal(t, c.retries, small.Recorded.Retries)
			assert.Equal(t, small.Recorded.DriverFrees, small.DriverFrees, "as it was recorded")
			assert.Equal(t, !c.oom, small.Fits)
			large, err := replay.Run(p.dump(0), replay.Config{Memory: 200 * alloc.MiB})
			require.NoError(t, err)
			assert.Equal(t, c.frees, large.DriverFrees)
			assert.True(t, large.Fits)
		})
	}
}

// TestRetriesThatAreNotTold: a request may fail where the cache had nothing to give back.
func TestRetriesThatAreNotTold(t *testing.T) {
	p := newProgram(t, 1, 100*alloc.MiB, cache.Config{}, 1)
	p.alloc(60 * alloc.MiB)
	got, err := replay.Run(p.dump(0), replay.Config{})
	require.NoError(t, err)
	assert.Zero(t, got.Recorded.Retries)
	p.alloc(60 * alloc.MiB)
	got, err = replay.Run(p.dump(0), replay.Config{})
	require.NoError(t, err)
	assert.EqualValues(t, -1, got.Recorded.Retries)
	assert.Contains(t, got.String(), "recorded: peak 60.0 MiB requested, 60.0 MiB in blocks, 60.0 MiB reserved; driver calls: 1 allocations, 0 frees; retries: unknown; out of memory: 1\n")
}

// TestTrackersTellRetries has a segment of 60 MiB go back before another comes, for a request that the driver
// refused or by the program. On a larger device only the program's segment goes back.
func TestTrackersTellRetries(t *testing.T) {
	for name, c := range map[string]struct {
		cleared    bool
		next       alloc.Bytes
		retries    int64
		freesLarge int64
	}{
		"a request's":              {false, 80 * alloc.MiB, 1, 0},
		"a request's that failed":  {false, 120 * alloc.MiB, 1, 0},
		"the program's":            {true, 80 * alloc.MiB, 0, 1},
		"the program's, in vain":   {true, 120 * alloc.MiB, 1, 1},
		"nobody's: there is space": {false, 30 * alloc.MiB, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
			require.NoError(t, err)
			tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
			require.NoError(t, err)
			defer func() { assert.NoError(t, tr.Close()) }()
			first, err := tr.AllocBytes(60*alloc.MiB, tracker.Temporary)
			require.NoError(t, err)
			require.NoError(t, first.Free())
			if c.cleared {
				_, err = tr.ClearCache()
				require.NoError(t, err)
			}
			second, err := tr.AllocBytes(c.next, tracker.Temporary)
			if c.next <= 100*alloc.MiB {
				require.NoError(t, err)
				defer func() { assert.NoError(t, second.Free()) }()
			} else {
				require.ErrorIs(t, err, alloc.ErrOutOfMemory)
			}
			got, err := replay.Run(tr.Dump(), replay.Config{Memory: 200 * alloc.MiB})
			require.NoError(t, err)
			assert.Equal(t, c.retries, got.Recorded.Retries)
			assert.Contains(t, got.String(), fmt.Sprintf("frees; retries: %d; out of memory: ", c.retries))
			assert.Equal(t, c.freesLarge, got.DriverFrees)
			assert.True(t, got.Fits)
		})
	}
}

// TestCachesOfOthersTellNoRetries: the history of a tracker over a cache that is not its own has no segments.
func TestCachesOfOthersTellNoRetries(t *testing.T) {
	dev, err := sim.New(sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: cachetest.NewCache(t, dev, cache.Config{}), Report: io.Discard})
	require.NoError(t, err)
	defer func() { assert.NoError(t, tr.Close()) }()
	_, err = tr.AllocBytes(120*alloc.MiB, tracker.Temporary)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	got, err := replay.Run(tr.Dump(), replay.Config{})
	require.NoError(t, err)
	assert.EqualValues(t, -1, got.Recorded.Retries)
}
