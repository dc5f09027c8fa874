package tracker_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// terse is a device that is full and says no more than that.
type terse struct{ alloc.Device }

func (terse) Alloc(alloc.Bytes) (alloc.Ptr, error) {
	return 0, fmt.Errorf("status 2: %w", alloc.ErrOutOfMemory)
}
func (terse) MemInfo() (alloc.MemInfo, error) { return alloc.MemInfo{}, errors.New("not supported") }

func TestOutOfMemoryOfADeviceThatTellsNothing(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: terse{device(t, sim.Config{})}, NoCache: true})
	_, err := tr.Alloc(alloc.Shape{8}, alloc.Float32, tracker.Activation)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Equal(t, alloc.Bytes(32), oom.Requested)
	var plain *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &plain)
	assert.ErrorContains(t, plain.Err, "status 2", "the device's own error")
	assert.Contains(t, err.Error(), "free unknown of unknown, largest inactive block unknown")
	assert.Contains(t, err.Error(), "reserved unknown, of which inactive unknown; untracked unknown")
}

func TestOutOfMemoryNamesTheLargestLinesFirst(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Memory: alloc.GiB})})
	for _, n := range []alloc.Bytes{1, 2, 3} {
		_, err := tr.AllocBytes(n, tracker.Input)
		require.NoError(t, err)
	}
	for _, n := range []alloc.Bytes{20, 30} {
		_, err := tr.AllocBytes(n, tracker.Input)
		require.NoError(t, err)
	}
	_, err := tr.AllocBytes(alloc.GiB, tracker.Input)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Len(t, oom.CallSites, 2)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 50}, oom.CallSites[0].Tally)
	assert.Equal(t, mem.Tally{Count: 3, Bytes: 6}, oom.CallSites[1].Tally)
}

// TestOutOfMemoryOfAProgramsOwnTest: who tests what a program does when memory runs out makes such an error.
func TestOutOfMemoryOfAProgramsOwnTest(t *testing.T) {
	err := error(&tracker.OutOfMemoryError{})
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Contains(t, err.Error(), "out of device memory on a device")
}

func TestOtherErrorsStayWhatTheyAre(t *testing.T) {
	dev := device(t, sim.Config{})
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	dev.Inject(sim.Fault{Call: "Alloc"})
	_, err := tr.Alloc(alloc.Shape{8}, alloc.Float32, tracker.Activation)
	require.ErrorIs(t, err, sim.ErrInjected)
	var oom *tracker.OutOfMemoryError
	assert.False(t, errors.As(err, &oom))
	assert.Contains(t, err.Error(), "alloc Activation (8,) float32: ")
}

func TestNVMLIsAskedForOtherProcesses(t *testing.T) {
	dev := device(t, sim.Config{Memory: alloc.GiB})
	dev.SetOther(100 * alloc.MiB)
	asked := 0
	tr, _ := open(t, tracker.Config{Device: dev, OtherProcesses: func() (alloc.Bytes, error) {
		asked++
		return 100 * alloc.MiB, nil
	}})
	_, err := tr.AllocBytes(550*alloc.MiB, tracker.Activation)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Equal(t, 1, asked)
	assert.Contains(t, oom.Advice, "other process: 100.0 MiB of the device")
}
