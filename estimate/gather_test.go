package estimate_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// gatheredLlama is the model of testdata/torch/fsdp2.py.
var gatheredLlama = family.Transformer{Vocab: 1000, Hidden: 512, FFN: 1376, Blocks: 4, Heads: 8, KVHeads: 2}

// mixed is the precision in which FSDP2 keeps parts in float32, and gathers and computes in bfloat16.
func mixed() []estimate.Option {
	return []estimate.Option{estimate.Precision(alloc.BFloat16), estimate.Weights(alloc.Float32), estimate.Gradients(alloc.Float32)}
}

// What PyTorch's FSDP2 was measured to need (testdata/torch/fsdp2.py).
func TestFSDP2NeedsWhatPyTorchNeeds(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/fsdp2.json")
	require.NoError(t, err)
	var measured struct {
		Devices, Batch, Length int
		Runs                   map[string]struct {
			Peak alloc.Bytes `json:"cpu_training_peak_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	for name, opts := range map[string][]estimate.Option{
		"root":         {estimate.Precision(alloc.Float32)},
		"ends":         append(mixed(), estimate.Sharding{Ends: true}),
		"checkpointed": append(mixed(), estimate.Sharding{Ends: true}, estimate.Checkpointed("model.layers.*")),
	} {
		s := estimate.Sharding{Data: measured.Devices, ZeRO: 3, By: "fsdp2", Ends: name != "root"}
		opts = append(opts, s, estimate.Tokens(measured.Batch, measured.Length), estimate.Train("none"), estimate.OnCPU(), estimate.Loop{Output: "dropped"})
		r := model(t, layer.Public(with(gatheredLlama.Layers(), layer.NextToken{})), opts...)
		assert.InEpsilon(t, float64(measured.Runs[name].Peak), float64(r.Training.Peak.Bytes-besides(r.Training)), 0.002, "%s: at %s", name, r.Training.PeakAt)
	}
}

// Streams share no blocks, so that more is reserved than without them; segments that expand waste less.
func TestFSDP2Reserves(t *testing.T) {
	train := func(more ...estimate.Option) estimate.Memory {
		opts := append(mixed(), estimate.Sharding{Data: 8, ZeRO: 3, By: "fsdp2", Ends: true}, estimate.Tokens(2, 2048), estimate.Train("adamw"), estimate.Loop{Form: "fused", Output: "dropped"})
		return model(t, layer.Public(with(mistral7b.Layers(), layer.NextToken{})), append(opts, more...)...).Training
	}
	segments, expandable := train(), train(estimate.ExpandableSegments())
	assert.Equal(t, segments.Peak.Bytes, expandable.Peak.Bytes)
	assert.Less(t, expandable.Footprint.Reserved.Bytes, segments.Footprint.Reserved.Bytes)
	assert.Greater(t, expandable.Footprint.Reserved.Bytes, expandable.Footprint.Allocated.Bytes)

	parts := model(t, layer.Public(with(mistral7b.Layers(), layer.NextToken{})), append(mixed(), estimate.Sharding{Data: 8, ZeRO: 3}, estimate.Tokens(2, 2048), estimate.Train("adamw"))...).Training
	assert.Equal(t, parts.Weights, segments.Weights)
	assert.Equal(t, parts.Optimizer, segments.Optimizer)
}

// Each device has equally many rows of a parameter, padded where they do not divide.
func TestFSDP2Pads(t *testing.T) {
	c := gatheredLlama
	c.Vocab = 1001 // 251 rows on each of 4 devices
	r := model(t, layer.Public(c.Layers()), estimate.Precision(alloc.Float32), estimate.Sharding{Data: 4, ZeRO: 3, By: "fsdp2"}, estimate.Train("adam"))
	whole := model(t, layer.Public(c.Layers()), estimate.Precision(alloc.Float32), estimate.Train("adam"))
	padding := alloc.Bytes(2 * 3 * c.Hidden * 4)
	assert.Equal(t, (whole.Params.Bytes+padding)/4, r.Training.Weights)
	assert.Equal(t, 2*r.Training.Weights, r.Training.Optimizer)
	assert.Equal(t, whole.Params, r.Params)
}

// With gradients that were added up over batches, the sum of a unit is added to its part.
func TestFSDP2AddsUpBatches(t *testing.T) {
	train := func(batches int) alloc.Bytes {
		opts := append(mixed(), estimate.Sharding{Data: 4, ZeRO: 3, By: "fsdp2"}, estimate.Tokens(2, 64), estimate.Train("none"), estimate.Loop{MicroBatches: batches, Output: "dropped"})
		return model(t, layer.Public(gatheredLlama.Layers()), opts...).Training.Peak.Bytes
	}
	assert.Greater(t, train(2), train(1))
	assert.Equal(t, train(2), train(3))
}
