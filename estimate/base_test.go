package estimate_test

import (
	"fmt"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// held is what Mistral 7B takes with its linear layers in a base.
func held(t *testing.T, q estimate.Quantized) alloc.Bytes {
	t.Helper()
	r := model(t, layer.Public(mistral7b.Layers()), estimate.Tokens(1, 16), estimate.Precision(alloc.BFloat16), q)
	assert.Equal(t, int64(7_241_732_096), r.Params.Count)
	return r.Inference.Weights + r.Inference.Buffers
}

func TestQuantize(t *testing.T) {
	const vocabulary, all = 32000 * 4096, 7_241_732_096
	linear := float64(all - 2*vocabulary - 65*4096) // without head and embedding
	inputs := float64(32 * (6*4096 + 14336))        // of the linear layers, all in all
	for _, c := range []struct {
		base    string
		bytes   float64 // of an element
		besides float64
	}{
		{"", 2, 0},
		{"nf4", 0.5 + 4.0/64, 0},
		{"nf4-double", 0.5 + 1.0/64 + 4.0/64/256, 0},
		{"int8", 1, 4 * 32 * (3*4096 + 2*1024 + 2*14336)},
		{"gptq", 0.5 + 2.5/128, 4 * inputs},
	} {
		want := linear*c.bytes + c.besides + 2*(all-linear)
		assert.InEpsilon(t, want, float64(held(t, estimate.Quantized{Base: c.base})), 1e-5, "%d", c.base)
		everything := held(t, estimate.Quantized{Base: c.base, Layers: []string{"*"}})
		if c.base == "nf4" {
			assert.InEpsilon(t, want-vocabulary*(2-c.bytes), float64(everything), 1e-5)
		}
	}
}

// A quantized layer is not trained, with adapters or without, and a weight is made anew for
// each of its products.
func TestQuantizeInTraining(t *testing.T) {
	train := func(q estimate.Quantized, more ...estimate.Option) *estimate.Report {
		return model(t, layer.Public(mistral7b.Layers()), append(opts(estimate.Tokens(1, 64), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), q), more...)...)
	}
	frozen := train(estimate.Quantized{Base: "nf4", Layers: []string{"*"}})
	assert.EqualValues(t, 32000*4096+65*4096, frozen.Trained.Count, "embedding and norms")

	lora := estimate.LoRA{Rank: 16, Targets: []string{"q_proj"}}
	adapted := train(estimate.Quantized{Base: "nf4"}, lora)
	assert.Greater(t, train(estimate.Quantized{Base: "nf4"}, lora, estimate.Installed("bitsandbytes==0.43.1")).Retained, adapted.Retained)

	serve := func(q estimate.Quantized, more ...estimate.Option) alloc.Bytes {
		return model(t, layer.Public(mistral7b.Layers()), append(more, estimate.Tokens(1, 16), estimate.Precision(alloc.BFloat16), q)...).Inference.Transient
	}
	const down = 4096 * 14336
	usual := serve(estimate.Quantized{Base: "nf4"})
	assert.EqualValues(t, 2*down, serve(estimate.Quantized{Base: "nf4"}, estimate.Installed("bitsandbytes==0.41.3"))-usual, "once in float16, and once in bfloat16")
	assert.Greater(t, serve(estimate.Quantized{Base: "nf4", Computes: alloc.Float32})-usual, alloc.Bytes(2*down))
	assert.Less(t, serve(estimate.Quantized{Base: "int8"}), usual, "products of 8 bits need no other weight")
}

// The experts of a mixture count among the linear layers.
func TestQuantizeExperts(t *testing.T) {
	mixtral := family.Transformer{Vocab: 32000, Hidden: 4096, FFN: 14336, Blocks: 32, Heads: 32, KVHeads: 8, Mixture: family.Mixture{Experts: 8, TopK: 2}}
	const all, whole = 46_702_792_704, 2*32000*4096 + 65*4096 + 32*8*4096 // embedding, head, norms and routers
	for _, c := range []struct {
		base  string
		bytes float64
	}{{"nf4", 0.5 + 4.0/64}, {"int8", 1}, {"gptq", 0.5 + 2.5/128}} {
		r := model(t, layer.Public(mixtral.Layers()), estimate.Tokens(1, 16), estimate.Precision(alloc.BFloat16), estimate.Quantized{Base: c.base})
		assert.EqualValues(t, int64(all), r.Params.Count)
		assert.InEpsilon(t, (all-whole)*c.bytes+2*whole, float64(r.Inference.Weights+r.Inference.Buffers), 0.002, c.base)
	}
}

func TestQuantizeSaysWhatIsWrong(t *testing.T) {
	for want, q := range map[string]estimate.Quantized{
		`Base is "nf5": want one of nf4, nf4-double, int8, gptq, awq`: {Base: "nf5"},
		`Quantized: no Linear's path matches "mlp"`:                   {Base: "nf4", Layers: []string{"mlp"}},
		"syntax error in pattern":                                     {Base: "nf4", Layers: []string{"["}},
		"int8 is not a type that products":                            {Base: "nf4", Computes: alloc.Int8},
	} {
		_, err := estimate.Model(layer.Public(mistral7b.Layers()), estimate.Tokens(1, 4), q)
		assert.ErrorContains(t, err, want)
	}
}

// AutoAWQ's weights take as much as GPTQ's without the groups of the inputs. Its product makes the weight anew for many tokens
// and has eight parts of its result for few.
func TestQuantizeAWQ(t *testing.T) {
	of := func(b string, tokens int) estimate.Memory {
		wide := []tape.Layer{layer.Linear{In: 4096, Out: 16384, NoBias: true}}
		return model(t, layer.Public(wide), estimate.InputShape(1, tokens, 4096), estimate.Precision(alloc.Float16), estimate.Quantized{Base: b, Layers: []string{"*"}}).Inference
	}
	awq, gptq := of("awq", 16), of("gptq", 16)
	assert.EqualValues(t, 4*4096, gptq.Weights+gptq.Buffers-awq.Weights-awq.Buffers)
	assert.EqualValues(t, 8*2*16*16384, awq.Transient)
	assert.EqualValues(t, 2*4096*16384+2*1024*16384, of("awq", 1024).Transient)
}

// Each block of Llama and Mistral had tables of its positions before transformers 4.41, and Llama and Gemma a mask from 4.38 to
// 4.39: of 32,768 positions 512 MiB in Mistral 7B, of 4,096 64 and 16 MiB in Llama 2 7B.
func TestTablesOfOlderReleases(t *testing.T) {
	buffers := func(name string, minor int) alloc.Bytes {
		m, err := zoo.ByName(name)
		require.NoError(t, err)
		return model(t, m.Layers, estimate.Precision(alloc.Float16), estimate.Installed(fmt.Sprintf("transformers==4.%d", minor))).Inference.Buffers
	}
	assert.Equal(t, 512*alloc.MiB, buffers("mistral-7b", 39)-buffers("mistral-7b", 41))
	assert.Equal(t, 80*alloc.MiB, buffers("llama-2-7b", 39)-buffers("llama-2-7b", 41))
	assert.Equal(t, 64*alloc.MiB, buffers("llama-2-7b", 40)-buffers("llama-2-7b", 41))
	assert.Equal(t, 64*alloc.MiB, buffers("gemma-2b", 39)-buffers("gemma-2b", 41))
}

// Until 0.2.7.post2 AutoAWQ's fused attention held its scores, and the softmax made a copy and a result in float32.
func TestAutoAWQHoldsScores(t *testing.T) {
	m, err := zoo.ByName("tinyllama-1.1b-chat-v1.0")
	require.NoError(t, err)
	peak := func(opts ...estimate.Option) estimate.Memory {
		r, err := estimate.Model(m.Layers, append(opts, estimate.Tokens(1, 1024), estimate.Precision(alloc.Float16))...)
		require.NoError(t, err)
		return r.Inference
	}
	awq, installed := estimate.Quantized{Base: "awq"}, estimate.Installed
	eager, fused := peak(awq, estimate.Attends("eager")), peak(awq)
	assert.Equal(t, fused, peak(awq, installed("autoawq==0.2.8")))
	assert.Equal(t, fused, peak(awq, installed("autoawq==0.2.7.post3")))
	assert.Equal(t, fused, peak(awq, installed("autoawq==0.2.6"), estimate.Attends("sdpa")))
	for _, version := range []string{"0.1.0", "0.2.6", "0.2.7.post2"} {
		assert.Equal(t, eager, peak(awq, installed("autoawq=="+version)), version)
	}
	assert.Equal(t, peak(), peak(installed("autoawq==0.2.6")), "weights that AutoAWQ does not have")
	scores := alloc.Bytes(32 * 1024 * 1024)
	assert.Greater(t, eager.Transient, (2+4+4)*scores)
}

// As torchao makes a weight in NF4, the whole weight, a scaled copy and differences from 16 values stay in the cache: before
// 0.2 the differences of the whole weight, then of 2^20 elements.
func TestTorchAOQuantizesOnDevice(t *testing.T) {
	const n = 4096 * 4096
	of := func(base string, opts ...estimate.Option) estimate.Footprint {
		wide := []tape.Layer{layer.Linear{In: 4096, Out: 4096, NoBias: true}}
		opts = append(opts, estimate.InputShape(1, 1, 4096), estimate.Precision(alloc.BFloat16))
		if base != "" {
			opts = append(opts, estimate.Quantized{Base: base, Layers: []string{"*"}})
		}
		return model(t, layer.Public(wide), opts...).Inference.Footprint
	}
	less, first, now := of("nf4-double"), of("nf4-double", estimate.Installed("torchao==0.1")), of("nf4-double", estimate.Installed("torchao==0.7"))
	// the unpacked weight of the product takes the block of a copy
	assert.InDelta(t, 2*n+n+2*valuesOfNF4*(1<<20)*2, int64(now.Reserved.Bytes-less.Reserved.Bytes), 24<<20)
	assert.InDelta(t, 2*n+2*valuesOfNF4*n*2, int64(first.Reserved.Bytes-less.Reserved.Bytes), 24<<20)
	assert.Greater(t, now.Needed.Bytes, less.Needed.Bytes)
	assert.Greater(t, first.Needed.Bytes, now.Needed.Bytes+2*(valuesOfNF4-2)*n*2)
	for _, base := range []string{"", "int8", "gptq"} {
		assert.Equal(t, of(base), of(base, estimate.Installed("torchao==0.7")), base)
	}
}

const valuesOfNF4 = 16
