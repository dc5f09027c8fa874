package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// What PyTorch keeps for the backward pass of a forward pass on fake CUDA tensors, in MiB: in
// float32, in bfloat16 alone, and under torch.autocast.
func TestAutocast(t *testing.T) {
	bert := bertLarge
	bert.Classes = 0
	gpt2 := gpt2Small
	gpt2.Plain = true
	llama := family.Transformer{Vocab: 128256, Hidden: 2048, FFN: 8192, Blocks: 16, Heads: 32, KVHeads: 8, Tied: true}
	for name, test := range map[string]struct {
		layers                    []tape.Layer
		input                     estimate.Option
		float32, pure, autocasted float64
	}{
		"resnet50":           {known(t, "resnet50"), estimate.InputShape(4, 3, 224, 224), 327.9, 167.1, 215.8},
		"bert-large":         {bert.Layers(), estimate.Tokens(4, 512), 6642.8, 3562.8, 5292.8},
		"gpt2":               {gpt2.Layers(), estimate.Tokens(4, 1024), 9315.8, 4983.8, 7385.4},
		"llama-1b, eager":    {llama.Layers(), together(estimate.Tokens(1, 2048), estimate.Attends("eager")), 14897.3, 15904.8, 18910.3},
		"densenet201":        {known(t, "densenet201"), estimate.InputShape(2, 3, 224, 224), 388.0, 196.0, 233.7},
		"mobilenet_v3_large": {known(t, "mobilenet_v3_large"), estimate.InputShape(2, 3, 224, 224), 84.2, 42.2, 52.6},
		"convnext_tiny":      {known(t, "convnext_tiny"), estimate.InputShape(2, 3, 224, 224), 208.2, 104.3, 170.0},
	} {
		t.Run(name, func(t *testing.T) {
			kept := func(opts ...estimate.Option) float64 {
				return float64(model(t, layer.Public(test.layers), append(opts, test.input)...).Retained) / float64(alloc.MiB)
			}
			assert.InDelta(t, test.float32, kept(), 0.1)
			assert.InDelta(t, test.pure, kept(estimate.Precision(alloc.BFloat16)), 0.1)
			assert.InDelta(t, test.autocasted, kept(estimate.Autocast(alloc.BFloat16)), 0.1)
		})
	}
}

// Weights and gradients stay in float32, and copies of the weights are cached through the forward
// pass, however little of it is kept.
func TestAutocastCachesWeights(t *testing.T) {
	opts := []estimate.Option{estimate.Tokens(1, 64), estimate.Train("sgd"), estimate.Checkpointed("encoder.layer.*"),
		estimate.Loop{ZeroGrad: "kept"}}
	plain := model(t, layer.Public(bertLarge.Layers()), opts...)
	cast := model(t, layer.Public(bertLarge.Layers()), append(opts, estimate.Autocast(alloc.Float16))...)
	assert.Equal(t, plain.Training.Weights, cast.Training.Weights)
	assert.Equal(t, plain.Gradients, cast.Gradients)
	blocks := alloc.Bytes(24 * 2 * 12 * 1024 * 1024)
	assert.Greater(t, cast.Training.Peak.Bytes-plain.Training.Peak.Bytes, blocks*3/4)
	_, err := estimate.Model(vgg19, estimate.Autocast(alloc.Int8))
	assert.ErrorContains(t, err, "Autocast")
}
