package notebook

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestMeasure(t *testing.T) {
	t.Setenv("GPUMEMTRACK_DEVICE", "sim")
	var out strings.Builder
	require.NoError(t, measure(func() {}, &out))
	assert.Empty(t, out.String(), "a cell that allocates nothing")

	require.NoError(t, measure(func() {
		_, err := tracker.Alloc(alloc.Shape{3 << 20}, alloc.Uint8, tracker.Input)
		require.NoError(t, err)
		work, err := tracker.Alloc(alloc.Shape{5 << 20}, alloc.Uint8, tracker.Temporary)
		require.NoError(t, err)
		require.NoError(t, work.Free())
	}, &out))
	assert.Contains(t, out.String(), "GPU:       3.0      5.0         3.0 MiB")
	assert.True(t, strings.HasSuffix(out.String(), "\n"))
}

func TestMeasureFails(t *testing.T) {
	t.Setenv("GPUMEMTRACK_DEVICE", "none")
	require.ErrorContains(t, measure(func() { t.Error("the cell runs") }, nil), "GPUMEMTRACK_DEVICE")

	t.Setenv("GPUMEMTRACK_DEVICE", "sim")
	full := errors.New("full")
	require.ErrorIs(t, measure(func() {
		_, err := tracker.Alloc(alloc.Shape{1}, alloc.Uint8, tracker.Input)
		require.NoError(t, err)
	}, broken{full}), full)
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

// TestMeasureLeavesTestsAlone returns, because this is one.
func TestMeasureLeavesTestsAlone(t *testing.T) {
	Measure(func() { t.Error("the cell runs") })
}
