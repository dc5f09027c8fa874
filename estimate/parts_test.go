package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// paths are those of the rows.
func paths(r *estimate.Report) []string {
	var all []string
	for _, row := range r.Layers {
		all = append(all, row.Path)
	}
	return all
}

// A Module calls what its containers hold, and passes the tensors beside its input on to it.
func TestModuleCallsPartsOfItsParts(t *testing.T) {
	r := model(t, []nn.Layer{nn.Module{
		Parts: nn.Sequential{
			nn.As("blocks", nn.Sequential{nn.ReLU{}, nn.Inline(nn.Sequential{nn.As("gated", gated(8))})}),
			nn.As("same", nn.Repeat(2, gated(8))),
			gated(8),
		},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			x = f.Call("blocks", x, f.Input(1))
			x = f.Call("blocks.gated", f.Call("blocks.0", x), f.Input(1))
			x = f.Call("same.1", f.Call("same.0", x, f.Input(1)), f.Input(1))
			return f.Call("2", x, f.Input(1))
		},
	}}, estimate.InputShape(2, 8), estimate.InputShape(2, 8))
	assert.Equal(t, int64(4*2*8*8), r.Params.Count)
	assert.Subset(t, paths(r), []string{"0.blocks.gated", "0.same.1.gate", "0.2.value"})
	for _, name := range []string{"blocks.1", "blocks.gated.up", "same.2", "same.x", "blocksgated", ""} {
		_, err := estimate.Model([]nn.Layer{nn.Module{
			Parts: nn.Sequential{
				nn.As("blocks", nn.Sequential{nn.Inline(nn.Sequential{nn.As("gated", nn.ReLU{})})}),
				nn.As("same", nn.Repeat(2, nn.ReLU{})),
			},
			Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Call(name, x) },
		}}, estimate.InputShape(2, 8))
		assert.ErrorContains(t, err, `which is none of its Parts`, name)
	}
}

// The parts of an inline layer are those of the layer around it, and it has no row.
func TestInline(t *testing.T) {
	plain := nn.Residual{Body: nn.Sequential{nn.As("norm", nn.LayerNorm{Size: 8}), nn.As("linear", nn.Linear{In: 8, Out: 8})}}
	r := model(t, []nn.Layer{nn.As("block", nn.Sequential{nn.Inline(plain), nn.Class("Identity")})}, estimate.InputShape(2, 8))
	assert.Equal(t, []string{"block", "block.norm", "block.linear", "block.1"}, paths(r))
	named := model(t, []nn.Layer{nn.As("block", nn.Inline(plain))}, estimate.InputShape(2, 8))
	assert.Equal(t, []string{"block", "block.norm", "block.linear"}, paths(named))
	assert.Equal(t, named.Retained, r.Retained)
	_, err := estimate.Model([]nn.Layer{nn.Sequential{nn.Inline(nil)}})
	assert.ErrorContains(t, err, "estimate 0.0 (nil): there is no layer here")
}

// Layers that share biases have one table, and cross-attention reads what stands beside.
func TestSharedBiasesAndCrossAttention(t *testing.T) {
	bias := &layer.RelativeBias{Buckets: 5}
	self := layer.Own(layer.Attention{Hidden: 8, Heads: 2, NoBias: true, Bias: bias})
	cross := layer.Own(layer.Attention{Hidden: 8, Heads: 2, NoBias: true, Cross: true})
	layers := []nn.Layer{nn.Module{
		Parts: nn.Sequential{nn.As("stack", nn.Repeat(3, nn.Sequential{self, cross}))},
		Run:   func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Call("stack", x, f.Input(1)) },
	}}
	r := model(t, layers, estimate.InputShape(2, 4, 8), estimate.InputShape(2, 6, 8))
	assert.Equal(t, int64(3*2*4*8*8+5*2), r.Params.Count)
	assert.Contains(t, paths(r), "0.stack.0.0.relative_attention_bias")
	assert.NotContains(t, paths(r), "0.stack.1.0.relative_attention_bias")

	for want, wrong := range map[string][]nn.Layer{
		"0.stack.0.1 (Attention): the layer reads tensor 0 beside its input, but was called with 0": {
			nn.As("0", nn.As("x", nn.Sequential{nn.As("stack", nn.Repeat(1, nn.Sequential{self, cross}))}))},
		"Bias.Buckets is 0: want 1 or more":                 {layer.Own(layer.Attention{Hidden: 8, Heads: 2, Bias: &layer.RelativeBias{}})},
		"Packed projections read one tensor":                {layer.Own(layer.Attention{Hidden: 8, Heads: 2, Packed: true, Cross: true})},
		"Eager, Capped or have Sinks have no Bias":          {layer.Own(layer.Attention{Hidden: 8, Heads: 2, Eager: true, Bias: bias})},
		"layers that share it must have the same heads and": {self, layer.Own(layer.Attention{Hidden: 8, Heads: 4, Bias: bias})},
	} {
		_, err := estimate.Model(wrong, estimate.InputShape(2, 4, 8))
		assert.ErrorContains(t, err, want)
	}
}

func TestWrongWindowsAndPadding(t *testing.T) {
	for want, l := range map[string]nn.Layer{
		"Window is 0: want 1 or more":         layer.Own(layer.WindowAttention{Hidden: 4, Heads: 2}),
		"Window is 99999: want at most 16384": layer.Own(layer.WindowAttention{Hidden: 4, Heads: 2, Window: 99999}),
		"Hidden 4 does not divide into 3":     layer.Own(layer.WindowAttention{Hidden: 4, Heads: 3, Window: 4}),
		"has 4 channels: want 16":             layer.Own(layer.WindowAttention{Hidden: 16, Heads: 2, Window: 4}),
		"Channels is 0":                       layer.Own(layer.PatchMerging{}),
		"has 4 channels: want 8":              layer.Own(layer.PatchMerging{Channels: 8}),
		"padded to 0 x 4 pixels":              nn.ZeroPad2d{0, 0, -6, 0},
	} {
		_, err := estimate.Model([]nn.Layer{l}, estimate.InputShape(2, 8, 6, 4))
		assert.ErrorContains(t, err, want)
	}
}
