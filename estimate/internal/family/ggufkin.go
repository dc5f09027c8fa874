package family

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// Ling2 is GLM-4.5 (Ling 2.0, modeling_bailing_moe_v2.py beside its weights), read from GGUF files alone. These have one matrix for
// queries, keys and values.
var Ling2 = &Family{
	Name:  "Ling 2",
	style: style{attention: func(_ Transformer, a *layer.Attention) { a.Joined = true }},
	GGUF:  []GGUF{{Name: "bailingmoe2", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Rotary: true, Read: ggufBest}},
}

// The keys of mixtures that llama.cpp's converter writes (gguf-py/gguf/constants.py, Keys.LLM).
const (
	sharedCountKey = "expert_shared_count"
	sharedFFNKey   = "expert_shared_feed_forward_length"
)

// ggufBest reads a mixture like DeepSeek V3's.
func ggufBest(m *Metadata, a *Model) {
	shared := 0
	m.may(&a.DenseBlocks, "leading_dense_block_count")
	m.may(&shared, sharedCountKey)
	m.may(&a.SharedFFN, sharedFFNKey)
	m.may(&a.Groups, "expert_group_count")
	m.may(&a.TopGroups, "expert_group_used_count")
	if shared > MaxBlocks {
		m.keep(&Error{Where: "metadata", Reason: fmt.Sprintf("%d shared experts", shared)})
		return
	}
	if shared > 0 && a.SharedFFN < a.ExpertFFN*shared { // the key has the width of one
		a.SharedFFN = min(a.ExpertFFN*shared, LargestNumber)
	}
	a.Router, a.DenseBlocks = layer.SigmoidRouter, min(a.DenseBlocks, a.Blocks)
	a.UnscaledTopK = !m.Flag(m.architecture+".expert_weights_norm", false)
	packedBiases(m, a)
}

// ggufGLM4MoE reads GLM-4.5, whose larger models have norms of queries and keys.
func ggufGLM4MoE(m *Metadata, a *Model) {
	ggufBest(m, a)
	last := fmt.Sprintf("blk.%d.", a.Blocks-1)
	a.QKVBias = m.has(last + "attn_q.bias")
	if m.has(last + "attn_q_norm.weight") {
		a.QKNorm = layer.NormHeads
	}
}

// ggufMiniMaxM2 reads MiniMax M2, whose MLPs are all experts.
func ggufMiniMaxM2(_ *Metadata, a *Model) { a.ExpertFFN = a.FFN }

// ggufHunYuanMoE reads a mixture whose experts are as wide as the MLP, beside an MLP of all tokens.
func ggufHunYuanMoE(m *Metadata, a *Model) {
	a.ExpertFFN = a.FFN
	if m.may(&a.SharedFFN, sharedFFNKey); a.SharedFFN == 0 {
		a.SharedFFN = a.FFN
	}
}

// ggufErnieMoE reads which blocks have a mixture.
func ggufErnieMoE(m *Metadata, a *Model) {
	ggufBest(m, a)
	step, first := 1, a.DenseBlocks
	m.may(&step, "interleave_moe_layer_step")
	a.Router, a.UnscaledTopK, a.DenseBlocks = layer.SoftmaxRouter, false, 0
	a.mark(Sparse, func(block int) bool { return block >= first && (block+1)%max(1, step) == 0 })
}

// ggufFalconH1 reads the mixer that each block has beside attention.
func ggufFalconH1(m *Metadata, a *Model) {
	ggufMamba2(m, a)
	if s := Own[layer.HeadSpace](a.Transformer); s != nil {
		s.Scaled = true
		if !m.has("blk.0.ssm_norm.weight") {
			s.Gate = layer.GateAlone
		}
	}
	a.mark(Recurrent, func(int) bool { return true })
}

// ggufNemotronH reads what each block has, by its heads of keys and values and the width of its MLP.
func ggufNemotronH(m *Metadata, a *Model) {
	ggufMamba2(m, a)
	own := &nemotronParts{}
	if s := Own[layer.HeadSpace](a.Transformer); s != nil {
		own.HeadSpace = *s
	}
	a.Own = own
	m.may(&own.latent, "moe_latent_size")
	heads, widths := m.byBlock(a, "attention.head_count_kv"), m.byBlock(a, "feed_forward_length")
	if m.err != nil {
		return
	}
	a.Activation = layer.UseSquaredReLU
	a.mark(Recurrent, func(block int) bool { return heads[block] == 0 && widths[block] == 0 })
	a.mark(Unattended, func(block int) bool { return heads[block] == 0 && widths[block] != 0 })
	routed := func(block int) bool { return m.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", block)) }
	if a.mark(Sparse, routed); !slices.ContainsFunc(a.Kinds, func(k BlockKind) bool { return k&Sparse != 0 }) {
		a.Experts, a.TopK = 0, 0
		return
	}
	shared, one := 0, 0
	m.may(&shared, sharedCountKey)
	if m.may(&one, sharedFFNKey); shared <= MaxBlocks {
		a.SharedFFN = min(one*max(1, shared), LargestNumber)
	}
	a.Router, a.UnscaledTopK = layer.SigmoidRouter, !m.Flag(m.architecture+".expert_weights_norm", false)
}

// ggufKimiLinear reads which blocks have Kimi's delta attention: those without heads of keys and values.
func ggufKimiLinear(m *Metadata, a *Model) {
	latent := &layer.LatentAttention{Still: true}
	delta := &layer.KimiDelta{Heads: a.Heads}
	key := 0
	m.must(&latent.KVRank, "attention.kv_lora_rank")
	m.must(&latent.RopeSize, "rope.dimension_count")
	m.must(&key, "attention.key_length_mla")
	m.must(&latent.ValueSize, "attention.value_length_mla")
	m.must(&delta.Kernel, "ssm.conv_kernel")
	m.must(&delta.Size, "kda.head_dim")
	ggufBest(m, a)
	m.withoutHeads(a)
	if latent.NopeSize = key - latent.RopeSize; latent.NopeSize < 1 {
		m.keep(&Error{Where: "metadata", Reason: fmt.Sprintf("keys of %d elements, of which %d rotate", key, latent.RopeSize)})
	}
	a.Own, a.Latent, a.KVHeads, a.HeadSize = delta, latent, 0, key
}

// ggufLFM2MoE reads LFM2 with a mixture after its first blocks.
func ggufLFM2MoE(m *Metadata, a *Model) {
	ggufLFM2(m, a)
	ggufBest(m, a)
	a.Router, a.UnscaledTopK = layer.LoneSigmoid, false
}

// ggufDeepstack reads how many blocks get vectors of images (Qwen3-VL).
func ggufDeepstack(m *Metadata, a *Model) {
	m.may(&a.Deepstack, "n_deepstack_layers")
	a.Deepstack = min(a.Deepstack, a.Blocks)
}
