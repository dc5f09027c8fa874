package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Only what both the estimate and the recording know stands side by side.
func TestBeside(t *testing.T) {
	layers := []nn.Layer{nn.Linear{In: 512, Out: 2048}, nn.ReLU{}, nn.Linear{In: 2048, Out: 10}}
	r, err := estimate.Model(layers, estimate.InputShape(64, 512), estimate.Train("adam"))
	require.NoError(t, err)
	m := r.Training
	assert.Empty(t, r.Beside(estimate.Measured{}))

	peaks := r.Beside(estimate.Measured{Requested: m.Peak.Bytes + m.Peak.Bytes/10, Reserved: m.Footprint.Reserved.Bytes})
	require.Len(t, peaks, 2)
	assert.Equal(t, "requested", peaks[0].Of)
	assert.Equal(t, m.Peak.Bytes, peaks[0].Estimate.Bytes)
	assert.Equal(t, m.Peak.Upper, peaks[0].Estimate.Upper)
	assert.InDelta(t, 0.1, peaks[0].Off(), 1e-6)
	assert.Equal(t, estimate.Compared{Of: "reserved", Estimate: m.Footprint.Reserved, Measured: m.Footprint.Reserved.Bytes}, peaks[1])

	assert.Empty(t, r.Beside(estimate.Measured{Kinds: map[string]alloc.Bytes{"": m.Peak.Bytes}}), "no kind is known")
	kinds := r.Beside(estimate.Measured{Kinds: map[string]alloc.Bytes{"Parameter": m.Weights, "OptimizerState": 7, "Activation": 5, "Temporary": 6}})
	want := map[string][2]alloc.Bytes{
		"weights": {m.Weights, m.Weights}, "gradients": {m.Gradients, 0}, "optimizer": {m.Optimizer, 7},
		"input": {m.Input, 0}, "activations": {m.Saved + m.Transient, 11},
	}
	got := map[string][2]alloc.Bytes{}
	for _, c := range kinds {
		got[c.Of] = [2]alloc.Bytes{c.Estimate.Bytes, c.Measured}
	}
	assert.Equal(t, want, got)

	row := r.Layers[0]
	all := r.Beside(estimate.Measured{Layers: map[string]alloc.Bytes{row.Path: 2 * row.Allocated, "another": 1}})
	require.Len(t, all, 1)
	assert.Equal(t, row.Path, all[0].Path)
	assert.InDelta(t, 1, all[0].Off(), 1e-9)
}
