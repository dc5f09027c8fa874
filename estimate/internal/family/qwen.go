package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

var Qwen = register(&Family{
	Name: "Qwen",
	Types: []Type{
		{Name: "qwen2", Base: "Qwen2Model", Read: readQwen2, Text: true},
		{Name: "qwen2_moe", Base: "Qwen2MoeModel", Read: readQwen2MoE},
		{Name: "qwen3", Base: "Qwen3Model", Read: readQwen3, Text: true},
		{Name: "qwen3_moe", Base: "Qwen3MoeModel", Read: readQwen3MoE},
		{Name: "qwen2_vl_text", Base: "Qwen2Model", Read: readQwen2, Text: true, Part: true},
		{Name: "qwen2_5_vl_text", Base: "Qwen2Model", Read: readQwen2, Text: true, Part: true},
		{Name: "qwen3_vl_text", Base: "Qwen3Model", Read: readQwen3, Text: true, Part: true},
		{Name: "qwen3_vl_moe_text", Base: "Qwen3MoeModel", Read: readQwen3VLMoEText, Text: true, Part: true},
	},
	GGUF: []GGUF{
		{Name: "qwen2", Biases: true},
		{Name: "qwen2moe", With: Transformer{Router: layer.RoundedRouter, SharedGate: true, UnscaledTopK: true}, Biases: true, Read: ggufQwen2MoE},
		{Name: "qwen3", With: Transformer{QKNorm: layer.NormHeads}, Biases: true},
		{Name: "qwen3moe", With: Transformer{QKNorm: layer.NormHeads, Router: layer.RoundedRouter}, Biases: true},
	},
})

func readQwen2(c *Config, a *Model) {
	c.decoder(a, "Qwen2ForCausalLM", 32, false)
	a.QKVBias = true
	c.qwenWindows(a)
	c.activation(a, c.text("hidden_act"), "silu")
}

func readQwen3(c *Config, a *Model) {
	c.decoder(a, "Qwen3ForCausalLM", 32, false)
	c.qwen3(a)
}

// qwen3 reads what Qwen3 and Qwen3 MoE have in common.
func (c *Config) qwen3(a *Model) {
	c.noBias()
	a.QKNorm = layer.NormHeads
	c.qwenWindows(a)
	c.activation(a, c.text("hidden_act"), "silu")
}

// qwenWindows reads the sliding window, which is off unless a key says so, and then is that
// of the last layers.
func (c *Config) qwenWindows(a *Model) {
	if !c.flag("use_sliding_window", false) {
		return
	}
	full := c.whole("max_window_layers", 28)
	c.windows(a, 0, func(layer int) bool { return layer < full })
}

// sparse reads a mixture of Qwen's.
func (c *Config) sparse(a *Model, experts, top, ffn int) {
	if step := c.whole("decoder_sparse_step", 1); step != 1 {
		c.unknown("decoder_sparse_step", fmt.Sprint(step))
	}
	dense := c.list("mlp_only_layers")
	for i, layer := range dense {
		if layer != i || i >= a.Blocks {
			c.unknown("mlp_only_layers", "a list other than that of the first layers")
		}
	}
	a.DenseBlocks, a.Router, a.UnscaledTopK = len(dense), layer.RoundedRouter, !c.flag("norm_topk_prob", false)
	c.mixture(a, "num_experts", experts, top)
	c.number(&a.ExpertFFN, "moe_intermediate_size", ffn)
}

func readQwen2MoE(c *Config, a *Model) {
	a.QKVBias = c.flag("qkv_bias", true)
	c.likeLlama(a, "Qwen2MoeForCausalLM")
	c.qwenWindows(a)
	c.sharedExpert(a, 5632)
	c.sparse(a, 60, 4, 1408)
}

// sharedExpert reads the MLP that each token visits besides.
func (c *Config) sharedExpert(a *Model, ffn int) {
	a.SharedGate = true
	c.number(&a.SharedFFN, "shared_expert_intermediate_size", ffn)
}

func readQwen3MoE(c *Config, a *Model) {
	c.decoder(a, "Qwen3MoeForCausalLM", 4, false)
	if c.flag("use_sliding_window", false) {
		c.unknown("use_sliding_window", "true")
	}
	c.qwen3(a)
	c.sparse(a, 128, 8, 768)
}

// readQwen3VLMoEText reads Qwen3 MoE whose weights of experts are always divided by their sum.
func readQwen3VLMoEText(c *Config, a *Model) {
	readQwen3MoE(c, a)
	a.UnscaledTopK = false
}

func ggufQwen2MoE(m *Metadata, a *Model) { m.must(&a.SharedFFN, "expert_shared_feed_forward_length") }
