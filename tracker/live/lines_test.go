package live_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// linesOf asks for the lines that hold memory.
func linesOf(t *testing.T, tr *tracker.MemTracker) (l struct {
	Live, Rest mem.Tally
	Lines      []struct {
		Line string
		mem.Tally
		Oldest *float64 `json:"oldest_seconds"`
		Stacks []struct {
			mem.Tally
			Frames []string
		}
		More int `json:"more_stacks"`
	}
}) {
	t.Helper()
	require.NoError(t, json.Unmarshal(get(t, live.Handler(tr), "lines").Body.Bytes(), &l))
	return l
}

// TestLines: the largest come first, each with the age of its oldest buffer and its call stacks, which add up to it.
func TestLines(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	exporttest.Train(t, tr)
	now = now.Add(time.Minute)

	l := linesOf(t, tr)
	assert.Equal(t, tr.Snapshot().Live, l.Live)
	assert.Zero(t, l.Rest)
	require.Len(t, l.Lines, 2)
	take, register := l.Lines[0], l.Lines[1]
	assert.Regexp(t, `^program.go:\d+ exporttest.take$`, take.Line)
	assert.Regexp(t, `^program.go:\d+ exporttest.register$`, register.Line)
	assert.Equal(t, mem.Tally{Count: 3, Bytes: 1536*alloc.KiB + 2*6912}, take.Tally)
	require.NotNil(t, take.Oldest)
	assert.Equal(t, 60.0, *take.Oldest)
	require.Len(t, take.Stacks, 2, "weights and a batch")
	assert.Zero(t, take.More)
	assert.Equal(t, take.Tally, take.Stacks[0].Add(take.Stacks[1].Tally))
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 1536 * alloc.KiB}, take.Stacks[0].Tally, "the largest comes first")
	assert.Equal(t, take.Line, take.Stacks[0].Frames[0])
	assert.Contains(t, take.Stacks[0].Frames[1], "exporttest.loadBatch")
}

// TestLinesAreBounded: what is beyond the largest is added up.
func TestLinesAreBounded(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	for i := range 100 {
		require.NoError(t, tr.Register(alloc.Ptr(4096*(i+1)), alloc.DeviceMemory, alloc.Shape{1 + i}, alloc.Uint8, tracker.Input))
	}
	l := linesOf(t, tr)
	var sum mem.Tally
	for _, line := range l.Lines {
		sum = sum.Add(line.Tally)
	}
	assert.Equal(t, tr.Snapshot().Live, sum.Add(l.Rest))
	assert.Empty(t, linesOf(t, exporttest.New(t, tracker.Config{})).Lines)
}
