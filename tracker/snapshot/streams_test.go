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
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestStreamsOfADump writes and reads a program with two streams.
func TestStreamsOfADump(t *testing.T) {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	want := tr.Dump()
	var text bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&text))
	got, err := snapshot.ReadDump(&text)
	require.NoError(t, err)
	assert.Equal(t, 6*alloc.MiB, got.Snapshot.Pending)
	assert.Equal(t, want.Snapshot.Segments, got.Snapshot.Segments)
	assert.Equal(t, slices.Collect(want.Snapshot.Allocations()), slices.Collect(got.Snapshot.Allocations()))
	assert.Equal(t, slices.Collect(want.Events()), slices.Collect(got.Events()))
}
