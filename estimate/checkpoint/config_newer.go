package checkpoint

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// sameBias reads biases of all projections or of none.
func (c *hfConfig) sameBias(a *architecture) error {
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias != orBool(c.MLPBias, false) {
		return c.unknown("attention_bias", "a value other than mlp_bias has")
	}
	return nil
}

func hfSeedOSS(c *hfConfig, a *architecture) error {
	if orBool(c.OutBias, false) || orBool(c.MLPBias, false) {
		return c.unknown("attention_out_bias, mlp_bias", "true")
	}
	a.QKVBias, a.Dropout, a.ScoreDropout = orBool(c.AttentionBias, true), c.AfterDropout, c.ScoresDropout
	return c.of(a, family.SeedOSS, "SeedOssForCausalLM")
}

func hfErnie(c *hfConfig, a *architecture) error {
	a.Bias = orBool(c.UseBias, false)
	return c.of(a, family.Ernie, "Ernie4_5ForCausalLM")
}

func hfMinistral3(c *hfConfig, a *architecture) error {
	a.Window = c.window()
	return c.of(a, family.Ministral3, "Ministral3ForCausalLM")
}

func hfHunYuan(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	return c.of(a, family.HunYuan, "HunYuanDenseV1ForCausalLM")
}

func hfArcee(c *hfConfig, a *architecture) error {
	if err := c.sameBias(a); err != nil {
		return err
	}
	if err := c.decoder(a, "ArceeForCausalLM", 0, false); err != nil {
		return err
	}
	a.Family = family.Arcee
	return c.activation(a, c.HiddenAct, "relu2")
}

// hfEXAONE4 reads EXAONE 4, whose layers without a window do not rotate if others have one.
func hfEXAONE4(c *hfConfig, a *architecture) error {
	if err := c.of(a, family.EXAONE4, "Exaone4ForCausalLM"); err != nil {
		return err
	}
	a.QKNorm = layer.NormHeads
	return c.turnedWindows(a)
}

func hfOLMoE(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	if err := c.of(a, family.Llama, "OlmoeForCausalLM"); err != nil {
		return err
	}
	a.QKNorm, a.ClipQKV = layer.NormAllHeads, c.ClipQKV != nil
	if a.ClipQKV {
		return c.unknown("clip_qkv", "a number")
	}
	a.Router, a.UnscaledTopK = layer.RoundedRouter, !orBool(c.NormTopK, false)
	return c.numbers(
		hfNumber{&a.Experts, "num_experts", c.QwenExperts, 64},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
	)
}

// groups reads the groups of experts.
func (c *hfConfig) groups(a *architecture) error {
	return c.numbers(
		hfNumber{&a.Groups, "n_group", c.Groups, 1},
		hfNumber{&a.TopGroups, "topk_group", c.TopGroups, 1},
	)
}

// bestOf reads a mixture like that of DeepSeek V3, without its attention.
func (c *hfConfig) bestOf(a *architecture, dense int) error {
	shared := 0
	err := c.numbers(
		hfNumber{&a.Experts, "n_routed_experts", c.RoutedExperts, 128},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
		hfNumber{&a.ExpertFFN, "moe_intermediate_size", c.ExpertFFN, 1408},
		hfNumber{&shared, "n_shared_experts", c.SharedExperts, 1},
	)
	if err != nil {
		return err
	}
	if err := c.groups(a); err != nil {
		return err
	}
	if shared > maxBlocks || a.ExpertFFN > largestNumber/max(1, shared) {
		return c.unknown("n_shared_experts", "such a number")
	}
	a.Router, a.SharedFFN, a.DenseBlocks = layer.SigmoidRouter, shared*a.ExpertFFN, dense
	a.UnscaledTopK = !orBool(c.NormTopK, true)
	if c.DenseFirst != nil {
		a.DenseBlocks = max(0, min(int(*c.DenseFirst), a.Blocks))
	}
	return nil
}

func hfGLM4MoE(c *hfConfig, a *architecture) error {
	a.QKVBias = orBool(c.AttentionBias, false)
	if orBool(c.UseQKNorm, false) {
		a.QKNorm = layer.NormHeads
	}
	if err := c.ofRotaryPart(a, family.GLM4MoE, "Glm4MoeForCausalLM", 0.5); err != nil {
		return err
	}
	return c.bestOf(a, 1)
}

func hfDots1(c *hfConfig, a *architecture) error {
	if err := c.of(a, family.Llama, "Dots1ForCausalLM"); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.QKNorm = layer.NormHeads
	return c.bestOf(a, 0)
}

func hfMiniMaxM2(c *hfConfig, a *architecture) error {
	if err := c.ofRotaryPart(a, family.MiniMaxM2, "MiniMaxM2ForCausalLM", 1); err != nil {
		return err
	}
	if c.RotaryWidth != nil {
		if err := c.numbers(hfNumber{&a.RotaryDim, "rotary_dim", c.RotaryWidth, 0}); err != nil {
			return err
		}
	}
	return c.numbers(
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 256},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
	)
}

func hfGraniteMoE(c *hfConfig, a *architecture) error {
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias {
		return c.unknown("attention_bias", "true")
	}
	if err := c.of(a, family.GraniteMoE, "GraniteMoeForCausalLM"); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 8},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 2},
	)
}
