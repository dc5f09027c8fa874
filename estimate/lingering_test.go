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

// Inputs of weights in 4 bits that are kept live with the loss: those of queries, keys and values, of gate
// and up, and of down, 64 tokens of bfloat16; that of the output is kept by attention anyway, and what
// comes before the first adapter needs no gradient. Bounds reach there if nobody says that they are not kept.
func TestKeptInputsLinger(t *testing.T) {
	version := func(keeps bool) estimate.Option {
		if keeps {
			return estimate.Installed("bitsandbytes==0.43.1")
		}
		return together()
	}
	of := func(keeps bool, o string, more ...estimate.Option) *estimate.Report {
		return adapted(t, estimate.LoRA{Rank: 16, Targets: []string{"down_proj"}}, append(more,
			estimate.Attends("flash"), estimate.Quantized{Base: "nf4"}, version(keeps), estimate.Loop{Output: o})...)
	}
	allocated := func(r *estimate.Report) estimate.Value { return r.Memory().Footprint.Allocated }
	old, today := of(true, "held"), of(false, "held")
	inputs := int64(2 * 64 * 31 * (2*4096 + 14336))
	assert.EqualValues(t, inputs, old.Retained-today.Retained)
	freed := of(true, "dropped")
	logits := int64(2 * 64 * 32000)
	assert.InEpsilon(t, inputs+logits, int64(allocated(old).Bytes-allocated(freed).Bytes), 0.2, "those of the step before")
	assert.GreaterOrEqual(t, allocated(today).Upper, allocated(old).Bytes)
	assert.Less(t, allocated(of(false, "held", estimate.Installed("torch==2.4"))).Upper, allocated(today).Upper)
	assert.Equal(t, allocated(today).Upper, allocated(of(false, "held", estimate.Installed("torch==2.3"))).Upper)
	assert.Less(t, allocated(of(false, "held", estimate.Installed("bitsandbytes==0.43.2"))).Upper, allocated(today).Upper)
}

// Keys and values that the model returns live until the next forward pass is over.
func TestOutputWithCache(t *testing.T) {
	loop := func(o string) estimate.Footprint {
		return model(t, layer.Public(llama7b.Layers()), estimate.Tokens(1, 2048), estimate.Precision(alloc.BFloat16), estimate.Train("none"),
			estimate.Loop{Output: o}).Memory().Footprint
	}
	held, more := loop("held"), loop("with-cache")
	cache, err := estimate.KVCache(estimate.KVConfig(llama7b.Cache(1, 2048, alloc.BFloat16)))
	assert.NoError(t, err)
	assert.InEpsilon(t, float64(cache), float64(more.Allocated.Bytes-held.Allocated.Bytes), 0.01)
	assert.GreaterOrEqual(t, held.Allocated.Upper, more.Allocated.Bytes)
	assert.GreaterOrEqual(t, loop("").Allocated.Upper, more.Allocated.Bytes)
}

// ownLoss is a sum that a caller wrote.
type ownLoss struct{}

func (ownLoss) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{}})
}

// What a loss of the caller's own reads is the model's output.
func TestOwnLossIsJudged(t *testing.T) {
	with := func(o string) alloc.Bytes {
		return model(t, layer.Public(append(gpt2Small.Layers(), ownLoss{})), estimate.Tokens(4, 1024), estimate.Train("none"),
			estimate.Loop{Output: o}).Memory().Footprint.Allocated.Bytes
	}
	assert.InEpsilon(t, 4*4*1024*50257, float64(with("held")-with("dropped")), 0.01)
}

// The experts of a quantized base take 4.5 bits an element, as linear layers do.
func TestQLoRAOfExperts(t *testing.T) {
	mixtral := family.Transformer{Vocab: 32000, Hidden: 4096, FFN: 14336, Blocks: 32, Heads: 32, KVHeads: 8, Mixture: family.Mixture{Experts: 8, TopK: 2}}
	r := model(t, layer.Public(mixtral.Layers()), estimate.Tokens(1, 64), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"),
		qlora("nf4", estimate.LoRA{Rank: 16, Targets: []string{"q_proj"}}))
	linear := int64(32 * (8*3*4096*14336 + 2*4096*4096 + 2*4096*1024))
	others := 2 * (46_702_792_704 - linear)
	assert.InEpsilon(t, float64(linear)*(0.5+4.0/64)+float64(others+4*r.Trained.Count), float64(r.Training.Weights+r.Training.Buffers), 1e-4)
}
