package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// busyDevice lets something happen while it is asked for its memory.
type busyDevice struct {
	alloc.Device
	meanwhile func()
}

func (d *busyDevice) MemInfo() (alloc.MemInfo, error) {
	if f := d.meanwhile; f != nil {
		d.meanwhile = nil
		f()
	}
	return d.Device.MemInfo()
}

// TestLevelsBeforeTheHistory: a snapshot asks the device a moment before it
// copies the ledger, and the history may tell of segments of that moment.
func TestLevelsBeforeTheHistory(t *testing.T) {
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	device := &busyDevice{Device: gpu}
	tr := exporttest.New(t, tracker.Config{Device: device})
	device.meanwhile = func() {
		_, err := tr.AllocBytes(1000, tracker.Input)
		require.NoError(t, err)
	}
	b := tr.Record().Begin()
	assert.True(t, b.Segments)
	assert.Equal(t, snapshot.Held{}, b.Held)
}
