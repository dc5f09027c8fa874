package explain_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// TestTheOnlyHoleIsSmall: with a largest hole between 1 and 2 MiB there is no size of which several fit, and no list of such.
func TestTheOnlyHoleIsSmall(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	b, err := tr.Alloc(alloc.Shape{1000, 1000, 32}, alloc.Float32, tracker.Parameter) // 122.1 MiB in a segment of 124
	require.NoError(t, err)
	text := explain.Snapshot(tr.Snapshot()).String()
	assert.NotContains(t, text, "room for ;")
	assert.Contains(t, text, "requests that the cache serves without the driver: up to 1.9 MiB, its largest inactive block\n")
	assert.Contains(t, text, "1.9 MiB is pinned beside a buffer in 1 segment\n")
	require.NoError(t, b.Free())
	assert.Contains(t, explain.Snapshot(tr.Snapshot()).String(), "; nothing is pinned\n")
}
