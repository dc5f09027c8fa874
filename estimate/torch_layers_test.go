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
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// layers are those of layers.py, by its names.
var layers = map[string]tape.Layer{
	"Conv1d":                  layer.Conv1d{In: 6, Out: 8, Kernel: 3, Stride: 2, Padding: 1, Dilation: 2, Groups: 2},
	"Conv2d":                  layer.Conv2d{In: 6, Out: 8, Kernels: [3]int{3, 5}, Strides: [3]int{2, 1}, Paddings: [3]int{1, 2}, Groups: 2, NoBias: true},
	"Conv3d":                  layer.Conv3d{In: 4, Out: 8, Kernel: 3, Strides: [3]int{1, 2, 2}, Padding: 1},
	"ConvTranspose1d":         layer.ConvTranspose1d{In: 6, Out: 8, Kernel: 4, Stride: 2, Padding: 1},
	"ConvTranspose2d":         layer.ConvTranspose2d{In: 6, Out: 8, Kernel: 3, Stride: 2, Padding: 1, OutputPadding: 1, Groups: 2, Dilation: 2},
	"ConvTranspose3d":         layer.ConvTranspose3d{In: 4, Out: 6, Kernel: 2, Stride: 2, NoBias: true},
	"Linear":                  layer.Linear{In: 16, Out: 24},
	"Embedding":               layer.Embedding{Num: 10, Dim: 4},
	"BatchNorm1d":             layer.BatchNorm{Features: 16},
	"BatchNorm3d":             layer.BatchNorm{Features: 4},
	"BatchNorm2d NoAffine":    layer.BatchNorm{Features: 4, NoAffine: true},
	"BatchNorm2d NoStats":     layer.BatchNorm{Features: 4, NoStats: true},
	"LayerNorm":               layer.LayerNorm{Size: 16},
	"LayerNorm NoBias":        layer.LayerNorm{Size: 16, NoBias: true},
	"LayerNorm NoAffine":      layer.LayerNorm{Size: 16, NoAffine: true},
	"GroupNorm":               layer.GroupNorm{Groups: 2, Channels: 8},
	"RMSNorm":                 layer.RMSNorm{Size: 16},
	"ReLU":                    layer.ReLU{},
	"ReLU InPlace":            layer.ReLU{InPlace: true},
	"ReLU6":                   layer.ReLU6{},
	"ReLU6 InPlace":           layer.ReLU6{InPlace: true},
	"SiLU":                    layer.SiLU{},
	"SiLU InPlace":            layer.SiLU{InPlace: true},
	"GELU":                    layer.GELU{},
	"Sigmoid":                 layer.Sigmoid{},
	"Tanh":                    layer.Tanh{},
	"Softmax":                 layer.Softmax{},
	"LogSoftmax":              layer.LogSoftmax{},
	"Dropout":                 layer.Dropout{P: 0.3},
	"Dropout InPlace":         layer.Dropout{P: 0.3, InPlace: true},
	"Dropout2d":               layer.ChannelDropout{},
	"MaxPool3d Kernels":       layer.MaxPool{Kernels: [3]int{1, 3, 3}, Strides: [3]int{1, 2, 2}, Paddings: [3]int{0, 1, 1}},
	"MaxPool3d Frames":        layer.MaxPool{Kernels: [3]int{2, 1, 1}},
	"MaxPool1d":               layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1},
	"MaxPool2d Ceil":          layer.MaxPool{Kernel: 3, Stride: 2, Ceil: true},
	"MaxPool2d Dilation":      layer.MaxPool{Kernel: 3, Stride: 1, Dilation: 2},
	"MaxPool3d":               layer.MaxPool{Kernel: 2},
	"AvgPool1d":               layer.AvgPool{Kernel: 2},
	"AvgPool2d":               layer.AvgPool{Kernel: 3, Stride: 2, Padding: 1},
	"AvgPool3d":               layer.AvgPool{Kernel: 2},
	"AdaptiveAvgPool1d":       layer.AdaptiveAvgPool(5),
	"AdaptiveAvgPool2d":       layer.AdaptiveAvgPool(7),
	"AdaptiveAvgPool3d":       layer.AdaptiveAvgPool(3),
	"AdaptiveAvgPool1d 1":     layer.AdaptiveAvgPool(1),
	"AdaptiveAvgPool2d 1":     layer.AdaptiveAvgPool(1),
	"AdaptiveAvgPool3d 1":     layer.AdaptiveAvgPool(1),
	"Flatten":                 layer.Flatten{},
	"Unflatten":               layer.Reshape{2, -1, 6},
	"Upsample":                layer.Upsample(2),
	"Upsample 1d":             layer.Upsample(3),
	"CrossEntropy":            layer.CrossEntropy{},
	"CrossEntropy 2d":         layer.CrossEntropy{Dim: 1},
	"MSE":                     layer.MSE{},
	"L1":                      layer.L1{},
	"BCEWithLogits":           layer.BCEWithLogits{},
	"Hardswish":               layer.Hardswish{},
	"Hardswish InPlace":       layer.Hardswish{InPlace: true},
	"Hardsigmoid":             layer.Hardsigmoid{},
	"LeakyReLU":               layer.LeakyReLU{},
	"LeakyReLU InPlace":       layer.LeakyReLU{InPlace: true},
	"ELU":                     layer.ELU{},
	"ELU InPlace":             layer.ELU{InPlace: true},
	"PReLU":                   layer.PReLU(16),
	"Mish":                    layer.Mish{},
	"InstanceNorm":            layer.InstanceNorm{Features: 4},
	"InstanceNorm Affine":     layer.InstanceNorm{Features: 4, Affine: true},
	"LocalResponseNorm":       layer.LocalResponseNorm(5),
	"AdaptiveMaxPool":         layer.AdaptiveMaxPool(3),
	"PixelShuffle":            layer.PixelShuffle(2),
	"LayerNorm2d":             layer.LayerNorm2d{Channels: 8},
	"Permute":                 tape.Permute{0, 2, 3, 1},
	"SqueezeExcitation":       layer.SqueezeExcite{Channels: 8, Middle: 4},
	"SqueezeExcitation Hard":  layer.SqueezeExcite{Channels: 8, Middle: 4, Gate: layer.Hardsigmoid{}},
	"NLL":                     layer.NLL{},
	"Huber":                   layer.Huber{},
	"SmoothL1":                layer.Huber{},
	"KLDiv":                   layer.KLDiv{},
	"CTC":                     layer.CTC(5),
	"ZeroPad2d":               layer.ZeroPad2d{1, 2, 0, -1},
	"Permute Linear":          permuted(tape.Permute{0, 2, 1}, layer.Linear{In: 8, Out: 12}),
	"Permute Linear 1":        permuted(tape.Permute{0, 2, 3, 1}, layer.Linear{In: 8, Out: 12}),
	"Permute Linear Heads":    permuted(tape.Permute{0, 2, 1, 3}, layer.Linear{In: 6, Out: 12}),
	"WindowAttention":         layer.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Packed: true, Plain: true},
	"WindowAttention Shifted": layer.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Shifted: true, Packed: true, Plain: true},
	"WindowAttention Small":   layer.WindowAttention{Hidden: 16, Heads: 2, Window: 4, Shifted: true, Packed: true, Plain: true},
	"PatchMerging":            layer.PatchMerging{Channels: 8},
}

// permuted is two layers that read the same permuted input.
func permuted(order tape.Permute, l layer.Linear) tape.Layer {
	return tape.Sequential{order, tape.Residual{Body: l, Shortcut: l}}
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
			one, ok := layers[name]
			require.True(t, ok)
			l, input, before := []tape.Layer{one}, estimate.InputShape(want.Input...), int64(0)
			if name == "Embedding" {
				input = estimate.Tokens(want.Input[0], want.Input[1])
			} else {
				shape := alloc.Shape(want.Input[1:])
				before, _ = shape.Elements()
				l = slices.Insert(l, 0, tape.Layer(layer.Learned{Shape: shape}))
			}
			r := model(t, layer.Public(l), input, estimate.OnCPU())
			assert.Equal(t, alloc.Shape(want.Output), r.Output)
			assert.Equal(t, want.Params, r.Params.Count-before)
			assert.Equal(t, want.Buffers, r.Buffers.Count)
			assert.Equal(t, want.Saved, r.Retained)
		})
	}
}
