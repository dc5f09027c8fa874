package tracker_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestSeveralDevices(t *testing.T) {
	trackertest.Several(t, device(t, sim.Config{Backed: true}), device(t, sim.Config{Ordinal: 1, Backed: true}))
}

// TestSeveralDevicesInOneReport: two trackers share a writer, and the second's blocks name their device.
func TestSeveralDevicesInOneReport(t *testing.T) {
	var report bytes.Buffer
	for ordinal := range 2 {
		tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Ordinal: ordinal}), Report: &report})
		report.Reset()
		tr.Track()
		if ordinal == 0 {
			assert.NotContains(t, report.String(), "Simulated GPU")
		} else {
			assert.Regexp(t, `\nAt several_test\.go line \d+: .* on Simulated GPU \[1\] \| .*\n`, report.String())
		}
	}
}

// TestAllOpenTrackers are in the order of their devices.
func TestAllOpenTrackers(t *testing.T) {
	before := len(tracker.SnapshotAll())
	second, _ := open(t, tracker.Config{Device: device(t, sim.Config{Ordinal: 1}), Report: io.Discard})
	first, _ := open(t, tracker.Config{Device: device(t, sim.Config{}), Report: io.Discard})
	all := tracker.SnapshotAll()
	require.Len(t, all, before+2)
	assert.Equal(t, 1, all[len(all)-1].Ordinal)
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	assert.Len(t, tracker.SnapshotAll(), before)
}

// plain is a device that copies, but not from others.
type plain struct {
	alloc.Device
	alloc.Copier
}

func TestCopyThroughTheHost(t *testing.T) {
	var trackers [2]*tracker.MemTracker
	for i := range trackers {
		dev := device(t, sim.Config{Ordinal: i, Backed: true})
		trackers[i], _ = open(t, tracker.Config{Device: plain{dev, dev}})
	}
	x, err := trackers[0].AllocBytes(40<<20, tracker.Input)
	require.NoError(t, err)
	y, err := trackers[1].AllocBytes(40<<20, tracker.Input)
	require.NoError(t, err)
	want := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 8<<20)
	require.NoError(t, tracker.CopyIn(x, want))
	require.NoError(t, tracker.Copy(y, x))
	got := make([]byte, len(want))
	require.NoError(t, tracker.CopyOut(y, got))
	assert.True(t, bytes.Equal(want, got))
}
