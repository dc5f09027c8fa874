package report_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
)

type writerFunc func(p []byte) (int, error)

func (f *writerFunc) Write(p []byte) (int, error) { return (*f)(p) }

// none checks that no text is queued.
func none(t *testing.T) {
	t.Helper()
	queues, inside := report.Queues()
	assert.Zero(t, queues)
	assert.Zero(t, inside)
}

// TestNothingStaysOfWriters: a queue is there only while something is in it, and
// what a Write leaves is bounded.
func TestNothingStaysOfWriters(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	var longest int
	var text string
	w := new(writerFunc)
	*w = func(p []byte) (int, error) {
		longest, text = max(longest, len(p)), string(p)
		return len(p), nil
	}
	tr, err := tracker.New(tracker.Config{Device: device, Report: w})
	require.NoError(t, err)
	none(t)

	whole := *w
	*w = func(p []byte) (int, error) {
		*w = whole
		for range 10_000 {
			tr.Track()
		}
		return len(p), nil
	}
	tr.Track()
	none(t)
	assert.LessOrEqual(t, longest, report.MaxLeft+100)
	assert.Regexp(t, "\n[0-9]+ marks are missing here: [^\n]*\n$", text)

	*w = func([]byte) (int, error) { panic("no paper") }
	assert.Panics(t, func() { tr.Track() })
	none(t)
	*w = whole
	assert.ErrorIs(t, tr.Close(), report.ErrNoReturn)
	none(t)
}
