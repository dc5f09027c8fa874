package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestEstimateAgreesWithMeasurement: each layer of the forward pass allocates
// what was expected, to the byte, and the step's peak is within a thousandth.
func TestEstimateAgreesWithMeasurement(t *testing.T) {
	const batch = 16
	report, want, err := expect(batch)
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	require.NoError(t, err)
	defer tr.Close()
	loop := &trainer{tr: tr}
	for _, row := range report.Layers {
		loop.shapes = append(loop.shapes, row.Output)
	}
	tr.Do("load", loop.load)
	for range 2 {
		tr.Do("step", func() { loop.step(batch) })
	}
	require.NoError(t, loop.err)

	profile := tr.Profile()
	require.NoError(t, profile.SetEstimates(want))
	compared := 0
	for _, row := range profile {
		if row.Estimate == nil {
			continue
		}
		compared++
		if row.Path == "step" {
			assert.InEpsilon(t, float64(row.Estimate.Bytes), float64(row.Peak), 0.001)
			continue
		}
		assert.Zero(t, row.Difference(), row.Path)
	}
	assert.Equal(t, 2+len(network), compared)
	require.NoError(t, loop.close())
	tracker.VerifyNoLeaks(t, tr)
}

func TestRun(t *testing.T) {
	for _, by := range []string{"tree", "self-peak"} {
		var out strings.Builder
		require.NoError(t, run(&out, 8, 2, by))
		for _, text := range []string{"conv1", "2.0 MiB allocated", "Difference", "train.go:", "The last step:\n\nRAM:  Consumed", "| step (Consumed/Peaked/Used Total)"} {
			assert.Contains(t, out.String(), text)
		}
	}
	assert.ErrorContains(t, run(io.Discard, 8, 2, "weight"), "parse column")
	assert.ErrorContains(t, run(io.Discard, -1, 2, "tree"), "estimate")
}
