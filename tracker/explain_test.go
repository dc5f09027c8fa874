package tracker_test

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// TestExplain leaves 5 MiB free in each segment of 12: together enough for a request, in pieces.
func TestExplain(t *testing.T) {
	gpu, err := sim.New(sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	require.NoError(t, err)
	defer tr.Close()
	buffer := func(n alloc.Bytes) *tracker.Buffer {
		b, err := tr.Alloc(alloc.Shape{int(n)}, alloc.Uint8, tracker.Activation)
		require.NoError(t, err)
		return b
	}
	var large []*tracker.Buffer
	for range 8 {
		large = append(large, buffer(12*alloc.MiB))
	}
	for _, b := range large {
		require.NoError(t, b.Free())
		defer buffer(7 * alloc.MiB).Free()
	}
	x := explain.Snapshot(tr.Snapshot())
	assert.Equal(t, 96*alloc.MiB, x.Reserved)
	assert.Equal(t, 56*alloc.MiB, x.Requested)
	assert.Equal(t, 40*alloc.MiB, x.Pinned)
	assert.Zero(t, x.Reclaimable)
	text, err := json.Marshal(x)
	require.NoError(t, err)
	var told struct {
		Pins []struct {
			Largest struct {
				Kind tracker.Kind
				Age  int64 `json:"age_ns"`
			}
		}
		Lines []struct{ Segments int }
	}
	require.NoError(t, json.Unmarshal(text, &told))
	require.Len(t, told.Pins, 8)
	assert.Equal(t, tracker.Activation, told.Pins[0].Largest.Kind)
	assert.Positive(t, told.Pins[0].Largest.Age)
	require.Len(t, x.Lines, 1)
	assert.Equal(t, 8, told.Lines[0].Segments)
	room, largest := x.Find(2 * alloc.MiB)
	assert.Equal(t, int64(16), room)
	assert.Equal(t, 5*alloc.MiB, largest)

	_, err = tr.Alloc(alloc.Shape{30 << 20}, alloc.Uint8, tracker.Input)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Contains(t, oom.Advice, "fragmented: ")
	assert.Regexp(t, `\n\tpinned in the cache:\n\t\t8 buffers, 56\.0 MiB at explain_test\.go:\d+ .* pin 40\.0 MiB in 8 segments, the oldest live for `, err.Error())
}
