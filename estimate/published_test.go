package estimate_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cases"
)

// owned is a run that no command asks for, most often of layers that the authors wrote. What was measured stands in
// docs/estimate-cases.csv.
type owned struct {
	model, setting string
	layers         []tape.Layer
	opts           []estimate.Option
}

var (
	bertLarge = family.Transformer{Family: encoder.BERT, Vocab: 30522, Hidden: 1024, Blocks: 24, Heads: 16, Positions: 512,
		Dropout: 0.1, Attention: family.Attention{Plain: true}, Head: family.Head{Classes: 2}}
	santacoder = family.Transformer{Family: family.GPT2, Vocab: 49280, Hidden: 2048, Blocks: 24, Heads: 16, KVHeads: 1, Positions: 2048,
		Activation: layer.UseGELUTanh, Tied: true, Dropout: 0.1}
	octocoder = family.Transformer{Family: family.GPT2, Vocab: 49152, Hidden: 6144, FFN: 24576, Blocks: 40, Heads: 48, KVHeads: 1, Positions: 8192,
		Activation: layer.UseGELUTanh, Tied: true}
	gpt2Small = family.Transformer{Family: family.GPT2, Vocab: 50257, Hidden: 768, Blocks: 12, Heads: 12, Positions: 1024, Tied: true, Dropout: 0.1}
	llama7b   = family.Transformer{Vocab: 32000, Hidden: 4096, FFN: 11008, Blocks: 32, Heads: 32}
	llama13b  = family.Transformer{Vocab: 32000, Hidden: 5120, FFN: 13824, Blocks: 40, Heads: 40}
	mistral7b = family.Transformer{Vocab: 32000, Hidden: 4096, FFN: 14336, Blocks: 32, Heads: 32, KVHeads: 8}
	tinyLlama = family.Transformer{Vocab: 32000, Hidden: 2048, FFN: 5632, Blocks: 22, Heads: 32, KVHeads: 4}
	llama3b   = family.Transformer{Vocab: 128256, Hidden: 3072, FFN: 8192, Blocks: 28, Heads: 24, KVHeads: 8, Tied: true}
	phi15     = family.Transformer{Family: family.Phi, Vocab: 51200, Hidden: 2048, Blocks: 24, Heads: 32, Attention: family.Attention{RotaryDim: 32}}
)

// trainer is the loop of transformers' Trainer, whose compute_loss returns the loss alone.
var trainer = estimate.Loop{ZeroGrad: "first", Output: "dropped", Form: "foreach"}

var lazyAmpere = estimate.Machine{GPU: "ampere", Loading: "lazy"}

func opts(o ...estimate.Option) []estimate.Option { return o }

func with(layers []tape.Layer, more ...tape.Layer) []tape.Layer {
	return append(slices.Clip(layers), more...)
}

func known(t *testing.T, name string) []tape.Layer {
	m, err := zoo.ByName(name)
	require.NoError(t, err)
	return layer.From(m.Layers)
}

// Each row without a command is what its layers and options give. TestCommandsOfCases in cmd has the others.
func TestPublished(t *testing.T) {
	runs := map[[2]string]owned{}
	for _, rows := range [][]owned{litgptRows(), videoRows(), diffusionRows(), segmentationRows(), timeSformerRows(), upernetRows(), furtherRows()} {
		for _, r := range rows {
			runs[[2]string{r.model, r.setting}] = r
		}
	}
	asked := map[[2]string]bool{}
	n := cases.Run(t, "../docs/estimate-cases.csv", *update, func(c cases.Case) bool { return c["command"] == "" }, func(t *testing.T, c cases.Case) estimate.Value {
		assert.Equal(t, "C", c["grade"], "without a command some of the run is its author's own")
		assert.NotEmpty(t, c["own"], "say what no command does")
		is := [2]string{c["model"], c["setting"]}
		r, ok := runs[is]
		require.True(t, ok, "neither a command nor layers")
		asked[is] = true
		f := model(t, layer.Public(r.layers), r.opts...).Memory().Footprint
		return map[string]estimate.Value{"allocated": f.Allocated, "reserved": f.Reserved, "device": f.Device}[c["quantity"]]
	})
	assert.Equal(t, 109, n)
	assert.Len(t, asked, len(runs), "a run has no row")
}
