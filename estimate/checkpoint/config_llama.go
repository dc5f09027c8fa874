package checkpoint

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

func hfLlama(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "LlamaForCausalLM", 0, false); err != nil {
		return err
	}
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias != orBool(c.MLPBias, false) {
		return c.unknown("attention_bias", "a value other than mlp_bias has")
	}
	return c.activation(a, c.HiddenAct, "silu")
}

func hfMistral(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "MistralForCausalLM", 8, false); err != nil {
		return err
	}
	a.Window = c.window()
	return c.activation(a, c.HiddenAct, "silu")
}

func hfMixtral(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "MixtralForCausalLM", 8, false); err != nil {
		return err
	}
	a.Window = c.window()
	if err := c.activation(a, c.HiddenAct, "silu"); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 8},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 2},
	)
}

func hfOLMo2(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Olmo2ForCausalLM", 0, false); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.Family = family.OLMo2
	return c.activation(a, c.HiddenAct, "silu")
}

func hfGPT2(c *hfConfig, a *architecture) error {
	class, err := c.class("GPT2LMHeadModel", "GPTBigCodeForCausalLM")
	if err != nil {
		return err
	}
	if orBool(c.CrossAttention, false) {
		return c.unknown("add_cross_attention", "true")
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "n_embd", c.NEmbd, 0},
		hfNumber{&a.Blocks, "n_layer", c.NLayer, 0},
		hfNumber{&a.Heads, "n_head", c.NHead, 0},
		hfNumber{&a.Positions, "n_positions", c.NPositions, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
	)
	if err != nil {
		return err
	}
	a.Family = family.GPT2
	a.NoHead, a.Tied = class == c.base, orBool(c.Tied, true)
	a.Dropout = max(c.ResidualDropout, c.EmbeddingDropout, c.AttentionDropout)
	if err := c.numbers(hfNumber{&a.FFN, "n_inner", c.NInner, 4 * a.Hidden}); err != nil {
		return err
	}
	return c.activation(a, c.ActivationFunction, "gelu_new")
}

func hfPhi(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "PhiForCausalLM", 0, false); err != nil {
		return err
	}
	if orBool(c.QKNorm, false) {
		return c.unknown("qk_layernorm", "true")
	}
	a.Family = family.Phi
	a.Dropout, a.PlainEmbeddings = max(c.ResidualDropout, c.EmbeddingDropout), c.EmbeddingDropout == 0
	if err := c.activation(a, c.HiddenAct, "gelu_new"); err != nil {
		return err
	}
	return c.rotaryPart(a, 0.5)
}

func hfPhi3(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Phi3ForCausalLM", 0, false); err != nil {
		return err
	}
	a.Family, a.Window = family.Phi3, c.window()
	a.Dropout = c.ResidualDropout
	if err := c.activation(a, c.HiddenAct, "silu"); err != nil {
		return err
	}
	return c.rotaryPart(a, 1)
}
