package tracker

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

type writerFunc func(p []byte) (int, error)

func (f *writerFunc) Write(p []byte) (int, error) { return (*f)(p) }

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
	tr, err := New(Config{Device: device, Report: w})
	require.NoError(t, err)
	assert.Empty(t, writers.queues)

	whole := *w
	*w = func(p []byte) (int, error) {
		*w = whole
		for range 10_000 {
			tr.Track()
		}
		return len(p), nil
	}
	tr.Track()
	assert.Empty(t, writers.queues)
	assert.LessOrEqual(t, longest, maxLeft+100)
	assert.Regexp(t, "\n[0-9]+ marks are missing here: [^\n]*\n$", text)

	*w = func([]byte) (int, error) { panic("no paper") }
	assert.Panics(t, func() { tr.Track() })
	assert.Empty(t, writers.queues)
	assert.Empty(t, writers.inside)
	*w = whole
	assert.ErrorIs(t, tr.Close(), errNoReturn)
	assert.Empty(t, writers.queues)
}
