package snapshot_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestStreamsOfADump writes and reads a program with two streams.
func TestStreamsOfADump(t *testing.T) {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	want := tr.Record()
	var text bytes.Buffer
	require.NoError(t, tr.Dump(&text, ""))
	got, err := snapshot.ReadDump(&text)
	require.NoError(t, err)
	assert.Equal(t, 6*alloc.MiB, got.Snapshot.Pending)
	assert.Equal(t, want.Snapshot.Segments, got.Snapshot.Segments)
	assert.Equal(t, slices.Collect(want.Snapshot.Allocations()), slices.Collect(got.Snapshot.Allocations()))
	assert.Equal(t, slices.Collect(want.Events()), slices.Collect(got.Events()))
}

// TestPendingBlocksAtEveryEvent goes back through the history of a program with two streams: of each
// buffer the block is allocated, then pending, then inactive.
func TestPendingBlocksAtEveryEvent(t *testing.T) {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	r := tr.Record()
	states := make(map[alloc.Ptr]alloc.BlockState)
	pending := 0
	for e := range r.Events() {
		s, err := r.At(e.Seq)
		require.NoError(t, err)
		got := make(map[alloc.Ptr]alloc.BlockState)
		level := alloc.Bytes(0)
		for _, segment := range s.Segments {
			for _, b := range segment.Blocks {
				if _, known := states[b.Ptr]; known {
					got[b.Ptr] = b.State
				}
				if b.State == alloc.Allocated {
					level += b.Size
				}
			}
		}
		assert.Equal(t, states, got, "before event %d", e.Seq)
		assert.Equal(t, level, s.Allocated, "before event %d", e.Seq)
		switch e.Action {
		case mem.Allocated:
			states[e.Ptr] = alloc.Allocated
		case mem.Freed:
			states[e.Ptr] = alloc.Pending
			pending++
		case mem.FreeCompleted:
			delete(states, e.Ptr) // it is joined with what is free beside it
		}
	}
	assert.Equal(t, 3, pending)
}
