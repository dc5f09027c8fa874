package estimate_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Where FSDP divides frozen layers, the inputs of checkpointed ones and their gradients are all there when the
// backward pass comes to the first layer.
func TestHookedInputs(t *testing.T) {
	const batch, length = 8, 512
	c := llama7b
	c.Vocab = 100
	of := func(blocks, torch int, more ...estimate.Option) int64 {
		c.Blocks = blocks
		return int64(model(t, layer.Public(with(c.Layers(), layer.NextToken{})), append(more, estimate.Tokens(batch, length), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), estimate.Installed(fmt.Sprintf("torch==2.%d", torch)),
			estimate.Checkpointed("model.layers.*"), estimate.Sharding{Data: 1 << 20, ZeRO: 3}, trainer)...).Training.Peak.Bytes)
	}
	adapt := estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}}
	input := int64(2 * batch * length * 4096)
	for _, c := range []struct {
		name  string
		torch int
		each  int64 // what a block adds
		more  []estimate.Option
	}{
		{"hooks", 4, 2 * input, opts(adapt)},
		{"frozen without adapters", 4, 2 * input, opts(estimate.Frozen("model.layers.*.mlp"))},
		{"before the hooks", 0, input, opts(adapt)},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.InEpsilon(t, 8*c.each, of(16, c.torch, c.more...)-of(8, c.torch, c.more...), 0.01)
		})
	}
}

// A checkpointed GPTBigCode returns its keys and values, as views of the projection that made them with the
// queries, which live until the forward pass is over. GPT-2 does not.
func TestCheckpointedCache(t *testing.T) {
	const batch, length = 8, 2048
	each := func(c family.Transformer, o string) int64 { // what a block adds
		var activations [2]int64
		for i, blocks := range []int{8, 16} {
			c.Blocks = blocks
			m := model(t, layer.Public(with(c.Layers(), layer.NextToken{})), estimate.Tokens(batch, length), estimate.Precision(alloc.BFloat16), estimate.Installed("transformers==4.45"), estimate.Train("none"),
				estimate.Checkpointed("transformer.h.*"), estimate.Attends("flash"), estimate.Loop{Output: o}).Training
			activations[i] = int64(m.Peak.Bytes - m.Weights - m.Gradients)
		}
		return (activations[1] - activations[0]) / 8
	}
	several := santacoder
	several.KVHeads = 2
	const input, projected = 2 * batch * length * 2048, 2 * batch * length * (2048 + 2*128)
	for _, o := range []string{"dropped", "with-cache"} {
		assert.InEpsilon(t, input+projected, each(santacoder, o), 0.001)
		assert.InEpsilon(t, input, each(several, "dropped"), 0.001)
	}
}

// Logits that the model makes float32 take the place of those in half precision, in the forward pass too.
func TestWidenedLogits(t *testing.T) {
	const batch, length = 4, 1024
	small := family.Transformer{Vocab: 50257, Hidden: 768, FFN: 2048, Blocks: 12, Heads: 12, Tied: true}
	of := func(version estimate.Option, o string) int64 {
		return int64(model(t, layer.Public(with(small.Layers(), layer.NextToken{})), estimate.Tokens(batch, length), estimate.Precision(alloc.BFloat16), version, estimate.Train("none"), estimate.Checkpointed("model.layers.*"), estimate.Attends("flash"),
			estimate.Loop{Output: o}).Training.Peak.Bytes)
	}
	logits := int64(batch * length * 50257)
	today, before := estimate.Installed("transformers==4.46"), estimate.Installed("transformers==4.45")
	assert.InEpsilon(t, 2*logits, of(today, "dropped")-of(before, "dropped"), 0.03)
	assert.InEpsilon(t, 4*logits, of(before, "in-pass")-of(before, "dropped"), 0.03)
}

// bitsandbytes' layers in 4 bits return the type of their input, so that norms that autocast makes float32 let what
// follows them be float32.
func TestQuantizedLayersKeepTheType(t *testing.T) {
	q := estimate.Quantized{Base: "nf4", Layers: []string{"*"}}
	of := func(in alloc.DType, more ...estimate.Option) alloc.Bytes {
		return writtenOf(t, model(t, layer.Public([]tape.Layer{layer.Linear{In: 64, Out: 1024, NoBias: true}}), append(more, q, estimate.Autocast(alloc.BFloat16), family.Given([]family.Input{{DType: in, Shape: []int{32, 64}}}))...)).Activations.Bytes
	}
	assert.EqualValues(t, 4*32*1024, of(alloc.Float32))
	assert.EqualValues(t, 2*32*1024, of(alloc.BFloat16))
}

// What policies keep of a block of Llama, by the order in which it multiplies: torchtitan's selective checkpointing keeps every
// other product, the first among them (queries, values, the gate, the way down), and what the kernel of attention returns
// (torchtitan/distributed/activation_checkpoint.py).
func TestCheckpointedBlocksKeepProducts(t *testing.T) {
	const tokens, hidden, kv, ffn, heads, blocks = 8 * 256, 512, 128, 1024, 8, 6
	m := family.Transformer{Vocab: 64, Hidden: hidden, FFN: ffn, Blocks: blocks, Heads: heads, KVHeads: 2}
	kept := func(opts ...estimate.Option) *estimate.Report {
		r, err := estimate.Model(layer.Public(m.Layers()), append(opts, estimate.Tokens(8, tokens/8), estimate.Precision(alloc.BFloat16), estimate.Train("sgd"))...)
		require.NoError(t, err)
		return r
	}
	checkpointed := estimate.Checkpointed("layers.*")
	none, whole := kept(), kept(checkpointed)
	half, products := kept(checkpointed, estimate.CheckpointSaves("half")), kept(checkpointed, estimate.CheckpointSaves("products"))
	const kernel = 2*hidden + 4*heads // the output, and the logarithms of sums in float32
	assert.Equal(t, alloc.Bytes(blocks*tokens*(kernel+2*(hidden+kv+ffn+hidden))), half.Retained-whole.Retained)
	assert.Equal(t, alloc.Bytes(blocks*tokens*(kernel+2*(hidden+kv+kv+hidden+ffn+ffn+hidden))), products.Retained-whole.Retained)
	assert.Less(t, products.Retained, none.Retained)
	assert.Less(t, whole.Training.Peak.Bytes, half.Training.Peak.Bytes)
	assert.Less(t, half.Training.Peak.Bytes, products.Training.Peak.Bytes)
	assert.Less(t, products.Training.Peak.Bytes, none.Training.Peak.Bytes)
	assert.Equal(t, none.Training, kept(estimate.CheckpointSaves("half")).Training, "nothing is checkpointed")

	_, err := estimate.Model(layer.Public(m.Layers()), estimate.Tokens(1, 8), estimate.CheckpointSaves("all"))
	assert.ErrorContains(t, err, `CheckpointSaves is "all": want one of products, half`)
}
