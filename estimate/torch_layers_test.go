package estimate_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// layers are those of layers.py, by its names.
var layers = map[string]estimate.Layer{
	"Conv1d":                  estimate.Conv1d{In: 6, Out: 8, Kernel: 3, Stride: 2, Padding: 1, Dilation: 2, Groups: 2},
	"Conv2d":                  estimate.Conv2d{In: 6, Out: 8, KernelHW: [2]int{3, 5}, StrideHW: [2]int{2, 1}, PaddingHW: [2]int{1, 2}, Groups: 2, NoBias: true},
	"Conv3d":                  estimate.Conv3d{In: 4, Out: 8, Kernel: 3, StrideDHW: [3]int{1, 2, 2}, Padding: 1},
	"ConvTranspose1d":         estimate.ConvTranspose1d{In: 6, Out: 8, Kernel: 4, Stride: 2, Padding: 1},
	"ConvTranspose2d":         estimate.ConvTranspose2d{In: 6, Out: 8, Kernel: 3, Stride: 2, Padding: 1, OutputPadding: 1, Groups: 2, Dilation: 2},
	"ConvTranspose3d":         estimate.ConvTranspose3d{In: 4, Out: 6, Kernel: 2, Stride: 2, NoBias: true},
	"Linear":                  estimate.Linear{In: 16, Out: 24},
	"Embedding":               estimate.Embedding{Num: 10, Dim: 4},
	"BatchNorm1d":             estimate.BatchNorm{Features: 16},
	"BatchNorm3d":             estimate.BatchNorm{Features: 4},
	"BatchNorm2d NoAffine":    estimate.BatchNorm{Features: 4, NoAffine: true},
	"BatchNorm2d NoStats":     estimate.BatchNorm{Features: 4, NoStats: true},
	"LayerNorm":               estimate.LayerNorm{Size: 16},
	"LayerNorm NoBias":        estimate.LayerNorm{Size: 16, NoBias: true},
	"LayerNorm NoAffine":      estimate.LayerNorm{Size: 16, NoAffine: true},
	"GroupNorm":               estimate.GroupNorm{Groups: 2, Channels: 8},
	"RMSNorm":                 estimate.RMSNorm{Size: 16},
	"ReLU":                    estimate.ReLU{},
	"ReLU InPlace":            estimate.ReLU{InPlace: true},
	"ReLU6":                   estimate.ReLU6{},
	"ReLU6 InPlace":           estimate.ReLU6{InPlace: true},
	"SiLU":                    estimate.SiLU{},
	"SiLU InPlace":            estimate.SiLU{InPlace: true},
	"GELU":                    estimate.GELU{},
	"Sigmoid":                 estimate.Sigmoid{},
	"Tanh":                    estimate.Tanh{},
	"Softmax":                 estimate.Softmax{},
	"LogSoftmax":              estimate.LogSoftmax{},
	"Dropout":                 estimate.Dropout{P: 0.3},
	"Dropout InPlace":         estimate.Dropout{P: 0.3, InPlace: true},
	"Dropout2d":               estimate.ChannelDropout{},
	"MaxPool3d Kernels":       estimate.MaxPool{Dims: 3, Kernels: [3]int{1, 3, 3}, Strides: [3]int{1, 2, 2}, Paddings: [3]int{0, 1, 1}},
	"MaxPool3d Frames":        estimate.MaxPool{Dims: 3, Kernels: [3]int{2, 1, 1}},
	"MaxPool1d":               estimate.MaxPool{Dims: 1, Kernel: 3, Stride: 2, Padding: 1},
	"MaxPool2d Ceil":          estimate.MaxPool{Kernel: 3, Stride: 2, Ceil: true},
	"MaxPool2d Dilation":      estimate.MaxPool{Kernel: 3, Stride: 1, Dilation: 2},
	"MaxPool3d":               estimate.MaxPool{Dims: 3, Kernel: 2},
	"AvgPool1d":               estimate.AvgPool{Dims: 1, Kernel: 2},
	"AvgPool2d":               estimate.AvgPool{Kernel: 3, Stride: 2, Padding: 1},
	"AvgPool3d":               estimate.AvgPool{Dims: 3, Kernel: 2},
	"AdaptiveAvgPool1d":       estimate.AdaptiveAvgPool{Dims: 1, Out: 5},
	"AdaptiveAvgPool2d":       estimate.AdaptiveAvgPool{Out: 7},
	"AdaptiveAvgPool3d":       estimate.AdaptiveAvgPool{Dims: 3, Out: 3},
	"AdaptiveAvgPool1d 1":     estimate.AdaptiveAvgPool{Dims: 1, Out: 1},
	"AdaptiveAvgPool2d 1":     estimate.AdaptiveAvgPool{Out: 1},
	"AdaptiveAvgPool3d 1":     estimate.AdaptiveAvgPool{Dims: 3, Out: 1},
	"Flatten":                 estimate.Flatten{},
	"Unflatten":               estimate.Reshape{Dims: []int{2, -1, 6}},
	"Upsample":                estimate.Upsample{Scale: 2},
	"Upsample 1d":             estimate.Upsample{Scale: 3},
	"CrossEntropy":            estimate.CrossEntropy{},
	"CrossEntropy 2d":         estimate.CrossEntropy{Dim: 1},
	"MSE":                     estimate.MSE{},
	"L1":                      estimate.L1{},
	"BCEWithLogits":           estimate.BCEWithLogits{},
	"Hardswish":               estimate.Hardswish{},
	"Hardswish InPlace":       estimate.Hardswish{InPlace: true},
	"Hardsigmoid":             estimate.Hardsigmoid{},
	"LeakyReLU":               estimate.LeakyReLU{},
	"LeakyReLU InPlace":       estimate.LeakyReLU{InPlace: true},
	"ELU":                     estimate.ELU{},
	"ELU InPlace":             estimate.ELU{InPlace: true},
	"PReLU":                   estimate.PReLU{Num: 16},
	"Mish":                    estimate.Mish{},
	"InstanceNorm":            estimate.InstanceNorm{Features: 4},
	"InstanceNorm Affine":     estimate.InstanceNorm{Features: 4, Affine: true},
	"LocalResponseNorm":       estimate.LocalResponseNorm{Size: 5},
	"AdaptiveMaxPool":         estimate.AdaptiveMaxPool{Out: 3},
	"PixelShuffle":            estimate.PixelShuffle{Factor: 2},
	"LayerNorm2d":             estimate.LayerNorm2d{Channels: 8},
	"Permute":                 estimate.Permute{Dims: []int{0, 2, 3, 1}},
	"SqueezeExcitation":       estimate.SqueezeExcite{Channels: 8, Middle: 4},
	"SqueezeExcitation Hard":  estimate.SqueezeExcite{Channels: 8, Middle: 4, Gate: estimate.Hardsigmoid{}},
	"NLL":                     estimate.NLL{},
	"Huber":                   estimate.Huber{},
	"SmoothL1":                estimate.Huber{},
	"KLDiv":                   estimate.KLDiv{},
	"CTC":                     estimate.CTC{Letters: 5},
	"ZeroPad2d":               estimate.ZeroPad2d{Left: 1, Right: 2, Bottom: -1},
	"Permute Linear":          permuted(estimate.Permute{Dims: []int{0, 2, 1}}, estimate.Linear{In: 8, Out: 12}),
	"Permute Linear 1":        permuted(estimate.Permute{Dims: []int{0, 2, 3, 1}}, estimate.Linear{In: 8, Out: 12}),
	"Permute Linear Heads":    permuted(estimate.Permute{Dims: []int{0, 2, 1, 3}}, estimate.Linear{In: 6, Out: 12}),
	"WindowAttention":         estimate.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Packed: true, Plain: true},
	"WindowAttention Shifted": estimate.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Shifted: true, Packed: true, Plain: true},
	"WindowAttention Small":   estimate.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Shifted: true, Packed: true, Plain: true},
	"PatchMerging":            estimate.PatchMerging{Channels: 8},
}

// permuted is two layers that read the same permuted input.
func permuted(order estimate.Permute, l estimate.Linear) estimate.Layer {
	return estimate.Sequential{order, estimate.Residual{Body: l, Shortcut: l}}
}

// Each layer by itself, after one that makes its input need a gradient.
func TestTorchLayers(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/layers.json")
	require.NoError(t, err)
	var measured struct {
		Layers map[string]struct {
			Input, Output   []int
			Params, Buffers int64
			Saved           alloc.Bytes `json:"saved_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	assert.Len(t, measured.Layers, len(layers))
	for name, want := range measured.Layers {
		t.Run(name, func(t *testing.T) {
			layer, ok := layers[name]
			require.True(t, ok)
			l, input, before := []estimate.Layer{layer}, estimate.InputShape(want.Input...), int64(0)
			if name == "Embedding" {
				input = estimate.Tokens(want.Input[0], want.Input[1])
			} else {
				shape := alloc.Shape(want.Input[1:])
				before, _ = shape.Elements()
				l = slices.Insert(l, 0, estimate.Layer(estimate.Learned{Shape: shape}))
			}
			r := model(t, l, input, estimate.On(estimate.CPU))
			assert.Equal(t, alloc.Shape(want.Output), r.Output)
			assert.Equal(t, want.Params, r.Params.Count-before)
			assert.Equal(t, want.Buffers, r.Buffers.Count)
			assert.Equal(t, want.Saved, r.Kept)
		})
	}
}
