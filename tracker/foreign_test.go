package tracker_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestSetLabelOfRegisteredMemory(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{})})
	require.NoError(t, tr.Register(4096, alloc.DeviceMemory, alloc.Shape{3}, alloc.Float32, tracker.Parameter))
	require.NoError(t, tr.SetLabel(4096, "bias"))
	for a := range tr.Snapshot().Allocations() {
		require.Equal(t, "bias", a.Label)
	}
	unregister(t, tr, 4096)
	require.ErrorIs(t, tr.SetLabel(4096, "bias"), alloc.ErrUnknownPtr)
}

func TestExplainAnAllocationOfOtherCode(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{}), OOMDir: t.TempDir()})
	require.NoError(t, tr.Register(4096, alloc.DeviceMemory, alloc.Shape{1 << 20}, alloc.Float32, tracker.Parameter))
	theirs := errors.New("their words")
	err := tr.ExplainOutOfMemory(fmt.Errorf("%w (%w)", alloc.ErrOutOfMemory, theirs), alloc.Shape{2, 3}, alloc.Float32, tracker.Activation)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.ErrorIs(t, err, theirs)
	require.Equal(t, tracker.Activation, oom.Kind)
	require.Equal(t, alloc.Bytes(24), oom.Requested)
	require.Len(t, oom.CallSites, 1)
	require.ErrorContains(t, err, "reserved 0 B, of which inactive 0 B")
	require.FileExists(t, oom.Dump)
	require.Equal(t, theirs, tr.ExplainOutOfMemory(theirs, alloc.Shape{2}, alloc.Float32, tracker.Activation), "no lack of memory")
}
