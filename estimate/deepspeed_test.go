package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// DeepSpeed's buffers are as long as its settings say, whatever the model: 500,000,000 elements by default, two of them with
// overlap_comm below ZeRO 3, and none where nothing is divided.
func TestDeepSpeedCollectsGradients(t *testing.T) {
	buckets := func(s estimate.Sharding, more ...estimate.Option) alloc.Bytes {
		s.By = "deepspeed"
		opts := []estimate.Option{estimate.Tokens(1, 64), estimate.MixedPrecision(alloc.BFloat16), estimate.Train("adamw"), s}
		return model(t, layer.Public(tiny["llama-tiny"].Layers()), append(opts, more...)...).Training.Buckets
	}
	for want, s := range map[alloc.Bytes]estimate.Sharding{
		1e9: {Data: 8, ZeRO: 2}, 2e9: {Data: 8, ZeRO: 2, Overlap: true}, 4e9: {Data: 8, ZeRO: 1, Bucket: 1e9, Overlap: true},
		6e8: {Data: 8, ZeRO: 3, Bucket: 3e8, Overlap: true}, 0: {Data: 1, ZeRO: 2},
	} {
		assert.Equal(t, want, buckets(s), "%+v", s)
	}
	assert.Equal(t, alloc.Bytes(2e9), buckets(estimate.Sharding{Data: 8, ZeRO: 1}, estimate.Gradients(alloc.Float32)), "in the gradients' type")
	assert.Equal(t, alloc.Bytes(1e9), buckets(estimate.Sharding{Data: 8, ZeRO: 2}, estimate.Gradients(alloc.Float32)), "in that of weights")
	_, err := estimate.Model(layer.Public(tiny["llama-tiny"].Layers()), estimate.Sharding{Data: 8, ZeRO: 3, By: "deepspeed", Bucket: -1})
	assert.ErrorContains(t, err, "Bucket is -1")
}

// As it steps, DeepSpeed copies the gradients that a device has to float32.
func TestDeepSpeedStepsInFloat32(t *testing.T) {
	step := func(by string, zero int, more ...estimate.Option) estimate.Memory {
		opts := []estimate.Option{estimate.Tokens(1, 1), estimate.MixedPrecision(alloc.BFloat16), estimate.Train("adamw"), estimate.Sharding{Data: 8, ZeRO: zero, By: by}, estimate.Loop{Form: "fused", Output: "dropped"}}
		return model(t, layer.Public(mistral7b.Layers()), append(opts, more...)...).Training
	}
	params := model(t, layer.Public(mistral7b.Layers()), estimate.Tokens(1, 1)).Params.Count
	m := step("deepspeed", 2)
	assert.Equal(t, "optimizer step", m.PeakAt)
	assert.Equal(t, alloc.Bytes(4*params/8), m.Transient)
	assert.Less(t, step("deepspeed", 2, estimate.Gradients(alloc.Float32)).Transient, alloc.MiB, "they are float32 already")
	assert.Greater(t, m.Footprint.Allocated.Bytes, step("", 2).Footprint.Allocated.Bytes+1e9)
}

// With ZeRO 3 the parameters of half of the reuse distance stay whole, those that are prefetched and the current layer's.
func TestDeepSpeedKeepsLiveParameters(t *testing.T) {
	peak := func(s estimate.Sharding) alloc.Bytes {
		s.Data, s.ZeRO, s.By = 8, 3, "deepspeed"
		opts := []estimate.Option{estimate.Tokens(1, 2048), estimate.MixedPrecision(alloc.BFloat16), estimate.Train("adamw"), s, estimate.Loop{Form: "fused", Output: "dropped"}}
		return model(t, layer.Public(mistral7b.Layers()), opts...).Training.Peak.Bytes
	}
	assert.Equal(t, alloc.Bytes(2*250_000_000), peak(estimate.Sharding{})-peak(estimate.Sharding{Reuse: 500_000_000}))
}
