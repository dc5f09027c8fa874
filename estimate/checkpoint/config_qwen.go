package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

func hfQwen2(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Qwen2ForCausalLM", 32, false); err != nil {
		return err
	}
	a.QKVBias = true
	if err := c.qwenWindows(a); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "silu")
}

func hfQwen3(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Qwen3ForCausalLM", 32, false); err != nil {
		return err
	}
	return c.qwen3(a)
}

// qwen3 reads what Qwen3 and Qwen3 MoE have in common.
func (c *hfConfig) qwen3(a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	a.QKNorm = layer.NormHeads
	if err := c.qwenWindows(a); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "silu")
}

// qwenWindows reads the sliding window, which is off unless a key says so, and then is that
// of the last layers.
func (c *hfConfig) qwenWindows(a *architecture) error {
	if !orBool(c.UseWindow, false) {
		return nil
	}
	full := int(*orNumber(c.FullLayers, 28))
	return c.windows(a, func(layer int) bool { return layer < full })
}

// sparse reads a mixture of Qwen's.
func (c *hfConfig) sparse(a *architecture, experts, top, ffn int) error {
	if c.SparseStep != nil && *c.SparseStep != 1 {
		return c.unknown("decoder_sparse_step", fmt.Sprint(*c.SparseStep))
	}
	for i, layer := range c.DenseLayers {
		if layer != i || i >= a.Blocks {
			return c.unknown("mlp_only_layers", "a list other than that of the first layers")
		}
	}
	a.DenseBlocks, a.Router, a.UnscaledTopK = len(c.DenseLayers), layer.RoundedRouter, !orBool(c.NormTopK, false)
	return c.numbers(
		hfNumber{&a.Experts, "num_experts", c.QwenExperts, experts},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, top},
		hfNumber{&a.ExpertFFN, "moe_intermediate_size", c.ExpertFFN, ffn},
	)
}

func hfQwen2MoE(c *hfConfig, a *architecture) error {
	a.QKVBias = orBool(c.QKVBias, true)
	if err := c.of(a, family.Llama, "Qwen2MoeForCausalLM"); err != nil {
		return err
	}
	if err := c.qwenWindows(a); err != nil {
		return err
	}
	if err := c.sharedExpert(a, 5632); err != nil {
		return err
	}
	return c.sparse(a, 60, 4, 1408)
}

// sharedExpert reads the MLP that each token visits besides.
func (c *hfConfig) sharedExpert(a *architecture, ffn int) error {
	a.SharedGate = true
	return c.numbers(hfNumber{&a.SharedFFN, "shared_expert_intermediate_size", c.SharedExpert, ffn})
}

func hfQwen3MoE(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Qwen3MoeForCausalLM", 4, false); err != nil {
		return err
	}
	if orBool(c.UseWindow, false) {
		return c.unknown("use_sliding_window", "true")
	}
	if err := c.qwen3(a); err != nil {
		return err
	}
	return c.sparse(a, 128, 8, 768)
}

// hfQwen3Next reads Qwen3-Next, in which three of four layers have linear attention.
func hfQwen3Next(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	a.QKNorm = layer.NormHeads
	if err := c.ofRotaryPart(a, family.Qwen3Next, "Qwen3NextForCausalLM", 0.25); err != nil {
		return err
	}
	if err := c.sharedExpert(a, 512); err != nil {
		return err
	}
	if err := c.sparse(a, 512, 10, 512); err != nil {
		return err
	}
	a.UnscaledTopK = !orBool(c.NormTopK, true)
	return c.linearAttention(a)
}

// hfQwen35 reads Qwen3.5, which is Qwen3-Next with an MLP and other projections.
func hfQwen35(c *hfConfig, a *architecture) error { return c.qwen35(a, "Qwen3_5ForCausalLM") }

// hfQwen35MoE reads Qwen3.5 with a mixture.
func hfQwen35MoE(c *hfConfig, a *architecture) error {
	c.Intermediate = orNumber(c.Intermediate, 1) // no layer has such an MLP
	if err := c.qwen35(a, "Qwen3_5MoeForCausalLM"); err != nil {
		return err
	}
	if err := c.sharedExpert(a, 512); err != nil {
		return err
	}
	if err := c.sparse(a, 256, 8, 512); err != nil {
		return err
	}
	a.UnscaledTopK = false
	return nil
}

func (c *hfConfig) qwen35(a *architecture, causal string) error {
	if err := c.noBias(); err != nil {
		return err
	}
	a.QKNorm, a.Batched = layer.NormHeads, true
	if err := c.ofRotaryPart(a, family.Qwen3Next, causal, 0.25); err != nil {
		return err
	}
	if err := c.linearAttention(a); err != nil {
		return err
	}
	a.Delta.Apart = true
	return nil
}

// linearAttention reads what layers have linear attention, and its numbers.
func (c *hfConfig) linearAttention(a *architecture) error {
	var delta layer.DeltaNet
	a.Delta = &delta
	err := c.numbers(
		hfNumber{&delta.KeyHeads, "linear_num_key_heads", c.LinearKeyHeads, 16},
		hfNumber{&delta.ValueHeads, "linear_num_value_heads", c.LinearValueHeads, 32},
		hfNumber{&delta.KeySize, "linear_key_head_dim", c.LinearKeySize, 128},
		hfNumber{&delta.ValueSize, "linear_value_head_dim", c.LinearValueSize, 128},
		hfNumber{&delta.Kernel, "linear_conv_kernel_dim", c.LinearKernel, 4},
	)
	if err != nil {
		return err
	}
	if c.LayerTypes != nil && len(c.LayerTypes) != a.Blocks {
		return &Error{File: c.file, Where: "layer_types", Reason: fmt.Sprintf("it has %d entries for %d layers", len(c.LayerTypes), a.Blocks)}
	}
	every := max(1, int(*orNumber(c.FullEvery, 4)))
	kinds := a.kinds()
	for i := range kinds {
		linear := (i+1)%every != 0
		if c.LayerTypes != nil {
			linear = c.LayerTypes[i] == "linear_attention"
		}
		if linear {
			kinds[i] |= family.Recurrent
		}
	}
	return nil
}
