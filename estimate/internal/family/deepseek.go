package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// DeepSeek is Llama with latent attention and a mixture of small experts.
var DeepSeek = &Family{
	Name: "DeepSeek",
	Types: []Type{
		{Name: "deepseek_v2", Base: "DeepseekV2Model", Read: readDeepSeekV2},
		{Name: "deepseek_v3", Base: "DeepseekV3Model", Read: readDeepSeekV3},
	},
	GGUF: []GGUF{
		{Name: "deepseek2", With: Transformer{Mixture: Mixture{Router: layer.WideRouter, UnscaledTopK: true}}, Biases: true, Read: ggufDeepSeek2},
	},
}

// Dots1 is Llama with a mixture like that of DeepSeek V3.
var Dots1 = &Family{
	Name:  "dots.llm1",
	Types: []Type{{Name: "dots1", Base: "Dots1Model", Read: readDots1}},
	GGUF:  []GGUF{{Name: "dots1", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Read: ggufBest}},
}

func readDeepSeekV3(c *Config, a *Model) { deepSeekV3(c, a, 3) }

// deepSeekV3 reads DeepSeek V3 and its successors, whose router chooses by a sigmoid, within groups; dense is as in
// deepSeek.
func deepSeekV3(c *Config, a *Model, dense int) {
	a.Router, a.UnscaledTopK = layer.SigmoidRouter, !c.Flag("norm_topk_prob", true)
	groups(c, a)
	deepSeek(c, a, dense)
}

func readDeepSeekV2(c *Config, a *Model) {
	if c.Flag("mlp_bias", false) {
		c.Unknown("mlp_bias", "true")
	}
	a.Router, a.UnscaledTopK = layer.WideRouter, true
	deepSeek(c, a, 0)
	a.Latent.Complex = true
}

// deepSeek reads what the versions have in common; dense is the number of dense layers if the key
// is missing.
func deepSeek(c *Config, a *Model, dense int) {
	c.decoder(a, 0, false)
	if every := c.Whole("moe_layer_freq", 1); every != 1 {
		c.Unknown("moe_layer_freq", fmt.Sprint(every))
	}
	c.mixture(a, "n_routed_experts", 256, 8)
	c.Number(&a.ExpertFFN, "moe_intermediate_size", 2048)
	shared := max(0, c.Whole("n_shared_experts", 1))
	if shared > MaxBlocks {
		c.Fail("n_shared_experts", "%d are more than %d", shared, MaxBlocks)
	}
	a.DenseBlocks, a.SharedFFN = max(0, min(c.Whole("first_k_dense_replace", dense), a.Blocks)), shared*a.ExpertFFN
	latent(c, a)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

// latent reads the sizes of latent attention.
func latent(c *Config, a *Model) {
	l := &layer.LatentAttention{Bias: c.Flag("attention_bias", false)}
	a.KVHeads, a.Latent = 0, l
	c.Number(&l.KVRank, "kv_lora_rank", 512)
	c.Number(&l.RopeSize, "qk_rope_head_dim", 64)
	c.Number(&l.NopeSize, "qk_nope_head_dim", 128)
	c.Number(&l.ValueSize, "v_head_dim", 128)
	c.optional(&l.QueryRank, "q_lora_rank")               // null means one projection for queries
	c.Harmless("qk_head_dim", "num_nextn_predict_layers") // the layers add up the two parts; no layers for more tokens are built
}

func readDots1(c *Config, a *Model) {
	c.likeLlama(a)
	c.noBias()
	a.QKNorm = layer.NormHeads
	bestOf(c, a, 0)
}

// ggufDeepSeek2 reads DeepSeek V2 and V3. In newer files the sizes of heads have keys of their own,
// and the usual keys hold those of the cache.
func ggufDeepSeek2(m *Metadata, a *Model) {
	var latent layer.LatentAttention
	var key, value, keyMLA, valueMLA, shared, gating int
	m.must(&latent.KVRank, "attention.kv_lora_rank")
	m.may(&latent.QueryRank, "attention.q_lora_rank")
	m.must(&latent.RopeSize, "rope.dimension_count")
	m.must(&key, "attention.key_length")
	m.must(&value, "attention.value_length")
	m.may(&keyMLA, "attention.key_length_mla")
	m.may(&valueMLA, "attention.value_length_mla")
	m.may(&a.DenseBlocks, "leading_dense_block_count")
	m.may(&shared, "expert_shared_count")
	m.may(&gating, "expert_gating_func")
	latent.Whole = keyMLA == 0 || valueMLA == 0
	if !latent.Whole {
		key, value = keyMLA, valueMLA
	}
	latent.NopeSize, latent.ValueSize = key-latent.RopeSize, value
	if latent.NopeSize < 1 || shared > MaxBlocks {
		m.keep(&Error{Where: "metadata", Reason: fmt.Sprintf("keys of %d elements, of which %d rotate, and %d shared experts", key, latent.RopeSize, shared)})
	}
	const sigmoid = 2
	latent.Complex = gating != sigmoid
	if gating == sigmoid {
		a.Router, a.UnscaledTopK = layer.SigmoidRouter, false
	}
	a.SharedFFN = int(min(int64(shared)*int64(a.ExpertFFN), LargestNumber))
	a.Latent, a.KVHeads, a.HeadSize, a.DenseBlocks = &latent, 0, key, min(a.DenseBlocks, a.Blocks)
}

// groups reads the groups of experts.
func groups(c *Config, a *Model) {
	c.Number(&a.Groups, "n_group", 1)
	c.Number(&a.TopGroups, "topk_group", 1)
}

// bestOf reads a mixture like DeepSeek V3's, without its attention.
func bestOf(c *Config, a *Model, dense int) {
	shared := 0
	c.mixture(a, "n_routed_experts", 128, 8)
	c.Number(&a.ExpertFFN, "moe_intermediate_size", 1408)
	c.Number(&shared, "n_shared_experts", 1)
	groups(c, a)
	if shared > MaxBlocks || a.ExpertFFN > LargestNumber/max(1, shared) {
		c.Unknown("n_shared_experts", "such a number")
	}
	a.Router, a.SharedFFN = layer.SigmoidRouter, shared*a.ExpertFFN
	a.UnscaledTopK = !c.Flag("norm_topk_prob", true)
	a.DenseBlocks = max(0, min(c.Whole("first_k_dense_replace", dense), a.Blocks))
}
