package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// paths are those of the rows.
func paths(r *estimate.Report) []string {
	var all []string
	for _, row := range r.Layers {
		all = append(all, row.Path)
	}
	return all
}

// A Module calls what its containers hold, and hands the tensors beside its input on to it.
func TestModuleCallsPartsOfItsParts(t *testing.T) {
	r := model(t, []estimate.Layer{estimate.Module{
		Parts: estimate.Sequential{
			estimate.As("blocks", estimate.Sequential{estimate.ReLU{}, estimate.Inline(estimate.Sequential{estimate.As("gated", gated(8))})}),
			estimate.As("same", estimate.Repeat{N: 2, Layer: gated(8)}),
			gated(8),
		},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			x = f.Call("blocks", x, f.Input(1))
			x = f.Call("blocks.gated", f.Call("blocks.0", x), f.Input(1))
			x = f.Call("same.1", f.Call("same.0", x, f.Input(1)), f.Input(1))
			return f.Call("2", x, f.Input(1))
		},
	}}, estimate.InputShape(2, 8), estimate.InputShape(2, 8))
	assert.Equal(t, int64(4*2*8*8), r.Params.Count)
	assert.Subset(t, paths(r), []string{"0.blocks.gated", "0.same.1.gate", "0.2.value"})
	for _, name := range []string{"blocks.1", "blocks.gated.up", "same.2", "same.x", "blocksgated", ""} {
		_, err := estimate.Model([]estimate.Layer{estimate.Module{
			Parts: estimate.Sequential{
				estimate.As("blocks", estimate.Sequential{estimate.Inline(estimate.Sequential{estimate.As("gated", estimate.ReLU{})})}),
				estimate.As("same", estimate.Repeat{N: 2, Layer: estimate.ReLU{}}),
			},
			Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor { return f.Call(name, x) },
		}}, estimate.InputShape(2, 8))
		assert.ErrorContains(t, err, `which is none of its Parts`, name)
	}
}

// The parts of an inline layer are those of the layer around it, and it has no row.
func TestInline(t *testing.T) {
	plain := estimate.Residual{Body: estimate.Sequential{estimate.As("norm", estimate.LayerNorm{Size: 8}), estimate.As("linear", estimate.Linear{In: 8, Out: 8})}}
	r := model(t, []estimate.Layer{estimate.As("block", estimate.Sequential{estimate.Inline(plain), estimate.If(false, plain)})}, estimate.InputShape(2, 8))
	assert.Equal(t, []string{"block", "block.norm", "block.linear", "block.1"}, paths(r))
	named := model(t, []estimate.Layer{estimate.As("block", estimate.Inline(plain))}, estimate.InputShape(2, 8))
	assert.Equal(t, []string{"block", "block.norm", "block.linear"}, paths(named))
	assert.Equal(t, named.Kept, r.Kept)
	_, err := estimate.Model([]estimate.Layer{estimate.Sequential{estimate.Inline(nil)}})
	assert.ErrorContains(t, err, "estimate 0.0 (nil): there is no layer here")
}

// Layers that share biases have one table, and cross-attention reads what stands beside.
func TestSharedBiasesAndCrossAttention(t *testing.T) {
	self := estimate.Attention{Hidden: 8, Heads: 2, NoBias: true, Bias: &estimate.RelativeBias{Buckets: 5}}
	cross := estimate.Attention{Hidden: 8, Heads: 2, NoBias: true, Cross: true}
	layers := []estimate.Layer{estimate.Module{
		Parts: estimate.Sequential{estimate.As("stack", estimate.Repeat{N: 3, Layer: estimate.Sequential{self, cross}})},
		Run:   func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor { return f.Call("stack", x, f.Input(1)) },
	}}
	r := model(t, layers, estimate.InputShape(2, 4, 8), estimate.InputShape(2, 6, 8))
	assert.Equal(t, int64(3*2*4*8*8+5*2), r.Params.Count)
	assert.Contains(t, paths(r), "0.stack.0.0.relative_attention_bias")
	assert.NotContains(t, paths(r), "0.stack.1.0.relative_attention_bias")

	for want, wrong := range map[string][]estimate.Layer{
		"0.stack.0.1 (Attention): the layer reads tensor 0 beside its input, but was called with 0": {
			estimate.As("0", estimate.As("x", estimate.Sequential{estimate.As("stack", estimate.Repeat{N: 1, Layer: estimate.Sequential{self, cross}})}))},
		"Bias.Buckets is 0: want 1 or more":                 {estimate.Attention{Hidden: 8, Heads: 2, Bias: &estimate.RelativeBias{}}},
		"Packed projections read one tensor":                {estimate.Attention{Hidden: 8, Heads: 2, Packed: true, Cross: true}},
		"Eager, Capped or have Sinks have no Bias":          {estimate.Attention{Hidden: 8, Heads: 2, Eager: true, Bias: self.Bias}},
		"layers that share it must have the same heads and": {self, estimate.Attention{Hidden: 8, Heads: 4, Bias: self.Bias}},
	} {
		_, err := estimate.Model(wrong, estimate.InputShape(2, 4, 8))
		assert.ErrorContains(t, err, want)
	}
}

func TestWrongWindowsAndPadding(t *testing.T) {
	for want, l := range map[string]estimate.Layer{
		"Window is 0: want 1 or more":         estimate.WindowAttention{Hidden: 4, Heads: 2},
		"Window is 99999: want at most 16384": estimate.WindowAttention{Hidden: 4, Heads: 2, Window: 99999},
		"Hidden 4 does not divide into 3":     estimate.WindowAttention{Hidden: 4, Heads: 3, Window: 4},
		"has 4 channels: want 16":             estimate.WindowAttention{Hidden: 16, Heads: 2, Window: 4},
		"Channels is 0":                       estimate.PatchMerging{},
		"has 4 channels: want 8":              estimate.PatchMerging{Channels: 8},
		"padded to 0 x 4 pixels":              estimate.ZeroPad2d{Top: -6},
	} {
		_, err := estimate.Model([]estimate.Layer{l}, estimate.InputShape(2, 8, 6, 4))
		assert.ErrorContains(t, err, want)
	}
}
