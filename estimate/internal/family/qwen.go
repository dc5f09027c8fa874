package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen is Llama with biases of queries, keys and values (Qwen2), or with norms of queries and keys (Qwen3).
var Qwen = &Family{
	Name: "Qwen",
	Types: []Type{
		{Name: "qwen2", Base: "Qwen2Model", Read: readQwen2, Text: true},
		{Name: "qwen2_moe", Base: "Qwen2MoeModel", Read: readQwen2MoE},
		{Name: "qwen3", Base: "Qwen3Model", Read: readQwen3, Text: true},
		{Name: "qwen3_moe", Base: "Qwen3MoeModel", Read: readQwen3MoE},
		{Name: "qwen2_vl_text", Base: "Qwen2VLTextModel", Read: readQwen2, Text: true},
		{Name: "qwen2_5_vl_text", Base: "Qwen2_5_VLTextModel", Read: readQwen2, Text: true},
		{Name: "qwen3_vl_text", Base: "Qwen3VLTextModel", Read: readQwen3, Text: true},
		{Name: "qwen3_vl_moe_text", Base: "Qwen3VLMoeTextModel", Read: readQwen3VLMoEText, Text: true},
	},
	GGUF: []GGUF{
		{Name: "qwen2", Biases: true},
		{Name: "qwen2moe", With: Transformer{Mixture: Mixture{Router: layer.RoundedRouter, SharedGate: true, UnscaledTopK: true}}, Biases: true, Read: ggufQwen2MoE},
		{Name: "qwen3", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Biases: true},
		{Name: "qwen2vl", Biases: true, With: Transformer{Attention: Attention{Batched: true}}},
		{Name: "qwen3vl", Biases: true, Read: ggufDeepstack, With: Transformer{Attention: Attention{QKNorm: layer.NormHeads, Batched: true}}},
		{Name: "qwen3vlmoe", Biases: true, Read: ggufDeepstack, With: Transformer{Attention: Attention{QKNorm: layer.NormHeads, Batched: true}, Mixture: Mixture{Router: layer.RoundedRouter}}},
		{Name: "qwen3moe", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}, Mixture: Mixture{Router: layer.RoundedRouter}}, Biases: true},
	},
}

func readQwen2(c *Config, a *Model) {
	c.decoder(a, 32, false)
	a.QKVBias = true
	qwenWindows(c, a)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

func readQwen3(c *Config, a *Model) {
	c.decoder(a, 32, false)
	qwen3(c, a)
}

// qwen3 reads what Qwen3 and Qwen3 MoE have in common.
func qwen3(c *Config, a *Model) {
	c.noBias()
	a.QKNorm = layer.NormHeads
	qwenWindows(c, a)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

// qwenWindows reads the sliding window. It is off unless a key says otherwise, and then only the
// last layers have it.
func qwenWindows(c *Config, a *Model) {
	if !c.Flag("use_sliding_window", false) {
		return
	}
	full := c.Whole("max_window_layers", 28)
	c.Windows(a, 0, func(layer int) bool { return layer < full })
}

// sparse reads a mixture of Qwen's.
func sparse(c *Config, a *Model, experts, top, ffn int) {
	if step := c.Whole("decoder_sparse_step", 1); step != 1 {
		c.Unknown("decoder_sparse_step", fmt.Sprint(step))
	}
	dense := c.List("mlp_only_layers")
	for i, layer := range dense {
		if layer != i || i >= a.Blocks {
			c.Unknown("mlp_only_layers", "a list other than that of the first layers")
		}
	}
	a.DenseBlocks, a.Router, a.UnscaledTopK = len(dense), layer.RoundedRouter, !c.Flag("norm_topk_prob", false)
	c.mixture(a, "num_experts", experts, top)
	c.Number(&a.ExpertFFN, "moe_intermediate_size", ffn)
}

func readQwen2MoE(c *Config, a *Model) {
	a.QKVBias = c.Flag("qkv_bias", true)
	c.likeLlama(a)
	qwenWindows(c, a)
	sharedExpert(c, a, 5632)
	sparse(c, a, 60, 4, 1408)
}

// sharedExpert reads the MLP that every token passes besides its experts.
func sharedExpert(c *Config, a *Model, ffn int) {
	a.SharedGate = true
	c.Number(&a.SharedFFN, "shared_expert_intermediate_size", ffn)
}

func readQwen3MoE(c *Config, a *Model) {
	c.decoder(a, 4, false)
	if c.Flag("use_sliding_window", false) {
		c.Unknown("use_sliding_window", "true")
	}
	qwen3(c, a)
	sparse(c, a, 128, 8, 768)
}

// readQwen3VLMoEText reads Qwen3 MoE, here always with expert weights divided by their sum.
func readQwen3VLMoEText(c *Config, a *Model) {
	readQwen3MoE(c, a)
	a.UnscaledTopK = false
}

func ggufQwen2MoE(m *Metadata, a *Model) { m.must(&a.SharedFFN, "expert_shared_feed_forward_length") }

// Qwen3Next is Llama with shifted norms, gated attention, and linear attention in most blocks.
var Qwen3Next = &Family{
	Name:  "Qwen3-Next",
	style: style{norm: gemmaNorm, attention: qwen3NextAttention, recurrent: deltaNet},
	Types: []Type{
		{Name: "qwen3_next", Base: "Qwen3NextModel", Read: readQwen3Next},
		{Name: "qwen3_5_text", Base: "Qwen3_5TextModel", Read: qwen35, Text: true},
		{Name: "qwen3_5_moe_text", Base: "Qwen3_5MoeTextModel", Read: readQwen35MoE, Text: true},
	},
	GGUF: []GGUF{
		{Name: "qwen3next", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}, Mixture: Mixture{Router: layer.RoundedRouter, SharedGate: true}}, Rotary: true, Read: ggufQwen3Next},
		{Name: "qwen35", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Rotary: true, Read: ggufQwen35},
		{Name: "qwen35moe", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}, Mixture: Mixture{Router: layer.RoundedRouter, SharedGate: true}}, Rotary: true, Read: ggufQwen35MoE},
	},
}

// ggufQwen35 reads which layers have linear attention, and its sizes (gguf-py/gguf/constants.py,
// Keys.SSM).
func ggufQwen35(m *Metadata, a *Model) {
	delta := layer.DeltaNet{Apart: true}
	a.Own = &delta
	inner, interval := 0, 0
	m.must(&delta.Kernel, "ssm.conv_kernel")
	m.must(&delta.KeySize, "ssm.state_size")
	m.must(&delta.KeyHeads, "ssm.group_count")
	m.must(&delta.ValueHeads, "ssm.time_step_rank")
	m.must(&inner, "ssm.inner_size")
	delta.ValueSize = max(1, inner/max(1, delta.ValueHeads))
	m.may(&interval, "full_attention_interval")
	full := each(setting.Or(interval, 4))
	a.mark(Recurrent, func(layer int) bool { return !full(layer) })
}

func ggufQwen35MoE(m *Metadata, a *Model) {
	ggufQwen35(m, a)
	m.must(&a.SharedFFN, "expert_shared_feed_forward_length")
}

func ggufQwen3Next(m *Metadata, a *Model) {
	ggufQwen35MoE(m, a)
	Own[layer.DeltaNet](a.Transformer).Apart = false
}

func qwen3NextAttention(_ Transformer, a *layer.Attention) {
	a.Joined, a.Gated = true, true
	a.HeadNorm = func(_, size int) tape.Layer { return layer.RMSNorm{Size: size, Unfused: true, Shifted: true} }
}

// readQwen3Next reads Qwen3-Next, in which three of four layers have linear attention.
func readQwen3Next(c *Config, a *Model) {
	c.noBias()
	a.QKNorm = layer.NormHeads
	c.rotatedInPart(a, 0.25)
	sharedExpert(c, a, 512)
	sparse(c, a, 512, 10, 512)
	a.UnscaledTopK = !c.Flag("norm_topk_prob", true)
	linearAttention(c, a)
}

// readQwen35MoE reads Qwen3.5 with a mixture.
func readQwen35MoE(c *Config, a *Model) {
	c.Usual("intermediate_size", 1) // no layer has such an MLP
	qwen35(c, a)
	sharedExpert(c, a, 512)
	sparse(c, a, 256, 8, 512)
	a.UnscaledTopK = false
}

func qwen35(c *Config, a *Model) {
	c.noBias()
	a.QKNorm, a.Batched = layer.NormHeads, true
	c.rotatedInPart(a, 0.25)
	linearAttention(c, a)
	Own[layer.DeltaNet](a.Transformer).Apart = true
}

// linearAttention reads which layers have linear attention, and its sizes.
func linearAttention(c *Config, a *Model) {
	var delta layer.DeltaNet
	a.Own = &delta
	c.stateType(a)
	c.Number(&delta.KeyHeads, "linear_num_key_heads", 16)
	c.Number(&delta.ValueHeads, "linear_num_value_heads", 32)
	c.Number(&delta.KeySize, "linear_key_head_dim", 128)
	c.Number(&delta.ValueSize, "linear_value_head_dim", 128)
	c.Number(&delta.Kernel, "linear_conv_kernel_dim", 4)
	types, full := c.layerTypes(a, "linear_attention", "full_attention"), each(max(1, c.Whole("full_attention_interval", 4)))
	a.mark(Recurrent, func(layer int) bool {
		if types != nil {
			return types[layer] == "linear_attention"
		}
		return !full(layer)
	})
}

// deltaNet returns the linear attention, or nil.
func deltaNet(c Transformer) *recurrence {
	own := Own[layer.DeltaNet](c)
	if own == nil {
		return nil
	}
	return replaced("linear_attn", layer.DeltaAttention{Hidden: c.Hidden, DeltaNet: *own}, own.Keeps())
}
