package estimate_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// What PyTorch was measured to do (testdata/torch/ways.py).
func TestTorchWaysOfTraining(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/ways.json")
	require.NoError(t, err)
	var measured struct {
		Batch, Length int
		Ways          map[string]struct {
			States alloc.Bytes `json:"states_bytes"`
			Peak   alloc.Bytes `json:"cpu_training_peak_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	ways := map[string][]estimate.Option{
		"adamw":             {estimate.Train("adamw")},
		"lion":              {estimate.Train("lion")},
		"muon":              {estimate.Train("muon")},
		"adamw in backward": {estimate.Train("adamw"), estimate.Loop{InBackward: true, Output: "held"}},
	}
	require.Len(t, measured.Ways, len(ways))
	for name, want := range measured.Ways {
		t.Run(name, func(t *testing.T) {
			r := model(t, layer.Public(tiny["llama-tiny"].Layers()), append(ways[name], estimate.Tokens(measured.Batch, measured.Length), estimate.OnCPU())...)
			assert.Equal(t, want.States, r.Training.Optimizer)
			assert.InEpsilon(t, float64(want.Peak), float64(r.Training.Peak.Bytes-besides(r.Training)), 0.03)
		})
	}
}

func small(t *testing.T, more ...estimate.Option) *estimate.Report {
	t.Helper()
	return model(t, layer.Public(tiny["llama-tiny"].Layers()), append([]estimate.Option{estimate.Tokens(1, 64)}, more...)...)
}

// An optimizer in backward needs no memory for all gradients at once.
func TestOptimizerInBackward(t *testing.T) {
	usual := small(t, estimate.Train("adamw"))
	passing := small(t, estimate.Train("adamw"), estimate.Loop{InBackward: true})
	assert.Less(t, passing.Training.Peak.Bytes, usual.Training.Peak.Bytes-usual.Gradients/2)
	assert.Less(t, passing.Training.Footprint.Reserved.Bytes, usual.Training.Footprint.Reserved.Bytes)
	assert.Equal(t, usual.Training.Optimizer, passing.Training.Optimizer)
	_, err := estimate.Model(layer.Public(tiny["llama-tiny"].Layers()), estimate.Tokens(1, 64), estimate.Train("adamw"), estimate.Loop{InBackward: true, MicroBatches: 2})
	assert.ErrorContains(t, err, "cannot add up 2 micro-batches")
}

func TestOffload(t *testing.T) {
	usual := small(t, estimate.Train("adamw"))
	m := usual.Training
	assert.Zero(t, m.Host)

	states := small(t, estimate.Train("adamw"), estimate.Offloaded("optimizer")).Training
	assert.Zero(t, states.Optimizer)
	assert.Equal(t, m.Weights, states.Weights)
	assert.Equal(t, m.Optimizer+m.Weights+usual.Gradients, states.Host, "copies to work on beside the states")
	assert.LessOrEqual(t, states.Peak.Bytes, m.Peak.Bytes-m.Optimizer)

	all := small(t, estimate.Train("adamw"), estimate.Offloaded("parameters"))
	assert.Zero(t, all.Training.Weights)
	assert.Equal(t, states.Host, all.Training.Host)
	assert.Less(t, all.Training.Peak.Bytes, states.Peak.Bytes)
	assert.Less(t, all.Training.Footprint.Needed.Upper, states.Footprint.Needed.Upper)
	assert.Equal(t, usual.Inference.Weights, all.Inference.Host)
	assert.Contains(t, all.String(), "memory of the CPU")

	mixed := small(t, estimate.Train("adamw"), estimate.MixedPrecision(alloc.BFloat16), estimate.Offloaded("optimizer")).Training
	assert.Zero(t, mixed.Master)
	assert.Equal(t, alloc.Bytes(16*usual.Params.Count), mixed.Host, "master weights, two states and gradients in float32 (arXiv:2101.06840)")

	bare := model(t, layer.Public(tiny["llama-tiny"].Layers()), estimate.Train("adamw"), estimate.Offloaded("parameters"))
	assert.Equal(t, all.Training.Host, bare.Training.Host, "without an input too")

	_, err := estimate.Model(layer.Public(tiny["llama-tiny"].Layers()), estimate.Offloaded("all"))
	assert.ErrorContains(t, err, `Offloaded is "all": want one of optimizer, parameters, paged`)
}

// With a tied head the gradient stays until the embedding has added to it.
func TestOptimizerInBackwardWithTiedParameters(t *testing.T) {
	c := tiny["llama-tiny"]
	c.Tied = true
	loop := estimate.Loop{InBackward: true, Form: "fused"}
	tied := model(t, layer.Public(c.Layers()), estimate.Tokens(1, 64), estimate.Train("sgd"), loop)
	embedding := alloc.Bytes(c.Vocab * c.Hidden * 4)
	assert.Equal(t, embedding, tied.Training.Gradients)
}

// A weight decay copies all gradients, which the upper bound of SGD allows for.
func TestWeightDecay(t *testing.T) {
	train := func(o, d string) *estimate.Report {
		return small(t, estimate.Train(o), estimate.Loop{Form: "foreach", ZeroGrad: "first", Decay: d})
	}
	for _, o := range []string{"sgd", "momentum"} {
		none, used, unsaid := train(o, "none"), train(o, "used"), train(o, "")
		assert.Equal(t, none.Training.Peak.Bytes, unsaid.Training.Peak.Bytes)
		assert.Greater(t, used.Training.Peak.Bytes, none.Training.Peak.Bytes)
		assert.GreaterOrEqual(t, unsaid.Training.Peak.Upper, used.Training.Peak.Upper)
		assert.Contains(t, unsaid.String(), "weight decay")
	}
	adam := train("adam", "used").Training
	assert.Equal(t, train("adamw", "used").Training.Peak.Bytes+adam.Weights, adam.Peak.Bytes)
}

// twelve has twelve blocks of Llama's kind.
var twelve = family.Transformer{Vocab: 512, Hidden: 64, Blocks: 12, Heads: 4, KVHeads: 2}

// A pattern of layers need not name what holds them, unless it is a whole path.
func TestCheckpointedByThePathsEnd(t *testing.T) {
	kept := func(patterns ...string) alloc.Bytes {
		return model(t, layer.Public(twelve.Layers()), estimate.Tokens(1, 64), estimate.Checkpointed(patterns...)).Retained
	}
	whole := kept("model.layers.*")
	assert.Less(t, whole, kept()/4)
	assert.Equal(t, whole, kept("layers.*"))
	assert.Equal(t, whole, kept("*.[0-9]*"), "the blocks, by their numbers")
	_, err := estimate.Model(layer.Public(twelve.Layers()), estimate.Tokens(1, 64), estimate.Checkpointed("blocks.*"))
	assert.ErrorContains(t, err, `matches "blocks.*"`)
}

// The kernel of attention decides what is kept of it, as the fields of a Transformer do.
func TestAttentionKernels(t *testing.T) {
	kept := func(c family.Transformer, k string) alloc.Bytes {
		return model(t, layer.Public(c.Layers()), estimate.Tokens(2, 128), estimate.Attends(k), estimate.Precision(alloc.BFloat16)).Retained
	}
	assert.Greater(t, kept(twelve, "eager"), kept(twelve, "sdpa"))
	assert.Equal(t, kept(twelve, ""), kept(twelve, "sdpa"))

	windowed := twelve
	windowed.Window, windowed.Kinds = 32, make([]family.BlockKind, twelve.Blocks)
	for i := range windowed.Kinds {
		windowed.Kinds[i] = family.Windowed
	}
	assert.Equal(t, kept(twelve, "sdpa"), kept(windowed, "flash"), "a window needs no mask")
	assert.Greater(t, kept(windowed, "sdpa"), kept(windowed, "flash"))

	encoder := family.Transformer{Family: encoder.BERT, Vocab: 512, Hidden: 64, Blocks: 2, Heads: 4, Positions: 128, Dropout: 0.1}
	plain := encoder
	plain.Plain = true
	assert.Equal(t, kept(plain, ""), kept(encoder, "eager"))

	_, err := estimate.Model(layer.Public(twelve.Layers()), estimate.Tokens(2, 128), estimate.Attends("flash_attention_2"))
	assert.ErrorContains(t, err, `Attends is "flash_attention_2": want one of sdpa, flash, eager`)
}
