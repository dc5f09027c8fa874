package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// of reads a decoder of a family that differs from Llama by little more than its layers.
func (c *hfConfig) of(a *architecture, f family.Family, causal string) error {
	a.Family = f
	if err := c.decoder(a, causal, 0, false); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "silu")
}

// ofRotaryPart is of for families whose heads rotate in part.
func (c *hfConfig) ofRotaryPart(a *architecture, f family.Family, causal string, without float64) error {
	if err := c.of(a, f, causal); err != nil {
		return err
	}
	return c.rotaryPart(a, without)
}

func hfGLM(c *hfConfig, a *architecture) error {
	a.QKVBias = orBool(c.AttentionBias, true)
	return c.ofRotaryPart(a, family.GLM, "GlmForCausalLM", 0.5)
}

func hfGLM4(c *hfConfig, a *architecture) error {
	a.QKVBias = orBool(c.AttentionBias, true)
	return c.ofRotaryPart(a, family.GLM4, "Glm4ForCausalLM", 0.5)
}

// hfChatGLM reads ChatGLM 2 and 3 and GLM-4, whose code lies beside their weights.
// Whatever class architectures names, it is the one with a head that is loaded.
func hfChatGLM(c *hfConfig, a *architecture) error {
	switch {
	case c.Intermediate == nil: // the first ChatGLM
		return c.unknown("ffn_hidden_size", "a model without it")
	case !orBool(c.RootNorm, true) || !orBool(c.LastNorm, true):
		return c.unknown("rmsnorm, post_layer_norm", "false")
	case orBool(c.AnyBias, false) || orBool(c.AfterNorm, false):
		return c.unknown("add_bias_linear, apply_residual_connection_post_layernorm", "true")
	case !orBool(c.MultiQuery, false):
		c.KVHeads = nil
	}
	c.Architectures, a.QKVBias = []string{"ChatGLMForConditionalGeneration"}, orBool(c.QKVBias, false)
	return c.ofRotaryPart(a, family.ChatGLM, "ChatGLMForConditionalGeneration", 0.5)
}

func hfGranite(c *hfConfig, a *architecture) error {
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias != orBool(c.MLPBias, false) {
		return c.unknown("attention_bias", "a value other than mlp_bias has")
	}
	return c.of(a, family.Granite, "GraniteForCausalLM")
}

func hfCohere(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	if orBool(c.UseQKNorm, false) {
		a.QKNorm = layer.NormHeads
	}
	return c.of(a, family.Cohere, "CohereForCausalLM")
}

// hfCohere2 reads Cohere with windows, whose layers without a window do not rotate.
func hfCohere2(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	if err := c.of(a, family.Cohere, "Cohere2ForCausalLM"); err != nil {
		return err
	}
	return c.turnedWindows(a)
}

// turnedWindows reads which layers have a window; the others do not rotate if there are such.
func (c *hfConfig) turnedWindows(a *architecture) error {
	every := max(1, int(*orNumber(c.WindowPattern, 4)))
	if err := c.windows(a, func(layer int) bool { return (layer+1)%every == 0 }); err != nil {
		return err
	}
	for i, kind := range a.Kinds {
		if kind&family.Windowed == 0 {
			a.Kinds[i] |= family.NoRotation
		}
	}
	return nil
}

func hfStarcoder2(c *hfConfig, a *architecture) error {
	a.Bias, a.Window, a.Dropout = orBool(c.UseBias, true), c.window(), c.AfterDropout
	return c.of(a, family.Starcoder2, "Starcoder2ForCausalLM")
}

func hfStableLM(c *hfConfig, a *architecture) error {
	a.QKVBias, a.Parallel, a.Dropout = orBool(c.UseQKVBias, false), orBool(c.Parallel, false), c.BlockDropout
	if orBool(c.QKNorm, false) {
		a.QKNorm = layer.NormHeads
	}
	return c.ofRotaryPart(a, family.StableLM, "StableLmForCausalLM", 0.25)
}

// hfSmolLM3 reads a Llama some of whose layers do not rotate.
func hfSmolLM3(c *hfConfig, a *architecture) error {
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias != orBool(c.MLPBias, false) {
		return c.unknown("attention_bias", "a value other than mlp_bias has")
	}
	if err := c.of(a, family.Llama, "SmolLM3ForCausalLM"); err != nil {
		return err
	}
	if orBool(c.UseWindow, false) {
		if err := c.windows(a, func(int) bool { return false }); err != nil {
			return err
		}
	}
	every := max(1, int(*orNumber(c.RotateEvery, 4)))
	return c.unrotated(a, func(layer int) bool { return (layer+1)%every == 0 })
}

// unrotated marks the layers that do not rotate: those for which no_rope_layers has a 0, or where
// it is absent those that are still.
func (c *hfConfig) unrotated(a *architecture, still func(layer int) bool) error {
	if len(c.RotateLayers) != 0 && len(c.RotateLayers) != a.Blocks {
		return &Error{File: c.file, Where: "no_rope_layers", Reason: fmt.Sprintf("it has %d entries for %d layers", len(c.RotateLayers), a.Blocks)}
	}
	kinds := a.kinds()
	for i := range kinds {
		if len(c.RotateLayers) == 0 && still(i) || len(c.RotateLayers) != 0 && c.RotateLayers[i] == 0 {
			kinds[i] |= family.NoRotation
		}
	}
	return nil
}

func hfOLMo(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	a.ClipQKV = c.ClipQKV != nil
	return c.of(a, family.OLMo, "OlmoForCausalLM")
}

func hfOLMo3(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	if err := c.of(a, family.OLMo2, "Olmo3ForCausalLM"); err != nil {
		return err
	}
	return c.windows(a, func(layer int) bool { return (layer+1)%4 == 0 })
}

func hfNemotron(c *hfConfig, a *architecture) error {
	a.Bias = orBool(c.AttentionBias, false)
	if a.Bias != orBool(c.MLPBias, false) {
		return c.unknown("attention_bias", "a value other than mlp_bias has")
	}
	return c.ofRotaryPart(a, family.Nemotron, "NemotronForCausalLM", 0.5)
}

func hfPhiMoE(c *hfConfig, a *architecture) error {
	a.Bias, a.HeadBias, a.Window = orBool(c.AttentionBias, false), orBool(c.HeadBias, false), c.window()
	if err := c.of(a, family.PhiMoE, "PhimoeForCausalLM"); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 16},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 2},
	)
}

func hfGPTNeoX(c *hfConfig, a *architecture) error {
	a.Bias, a.Parallel, a.Dropout = orBool(c.AttentionBias, true), orBool(c.Parallel, true), c.BlockDropout
	if !a.Bias {
		return c.unknown("attention_bias", "false")
	}
	return c.ofRotaryPart(a, family.GPTNeoX, "GPTNeoXForCausalLM", 0.25)
}

func hfFalcon(c *hfConfig, a *architecture) error {
	renewed := orBool(c.NewFalcon, false)
	a.Family, a.Bias, a.Alibi = family.Falcon, orBool(c.AnyBias, false), orBool(c.Alibi, false)
	a.Parallel = renewed || orBool(c.ParallelAttn, true)
	a.TwoNorms = renewed && (c.ParallelNorms == nil || *c.ParallelNorms == 2)
	if c.HiddenSize != nil {
		c.Intermediate = orNumber(c.FalconFFN, 4*min(*c.HiddenSize, largestNumber/4))
	}
	switch {
	case renewed:
		c.KVHeads = c.FalconKVHeads
	case orBool(c.MultiQuery, true):
		c.KVHeads = new(whole(1))
	default:
		c.KVHeads = nil
	}
	if err := c.decoder(a, "FalconForCausalLM", 0, true); err != nil {
		return err
	}
	return c.activation(a, c.ActivationName, "gelu")
}

func hfBLOOM(c *hfConfig, a *architecture) error {
	if orBool(c.AfterNorm, false) {
		return c.unknown("apply_residual_connection_post_layernorm", "true")
	}
	if c.HiddenSize != nil {
		c.Intermediate = new(4 * min(*c.HiddenSize, largestNumber/4))
	}
	a.Family, a.Bias, a.Dropout = family.Bloom, true, c.BlockDropout
	return c.decoder(a, "BloomForCausalLM", 0, true)
}

func hfOPT(c *hfConfig, a *architecture) error {
	if !orBool(c.EnableBias, true) || !orBool(c.NormWeights, true) {
		return c.unknown("enable_bias, layer_norm_elementwise_affine", "false")
	}
	a.Family, a.Bias, a.NormAfter, a.Dropout = family.OPT, true, !orBool(c.NormBefore, true), c.PlainDropout
	c.Intermediate = c.OptFFN
	if err := c.decoder(a, "OPTForCausalLM", 0, true); err != nil {
		return err
	}
	err := c.numbers(
		hfNumber{&a.Positions, "max_position_embeddings", c.Context, 2048},
		hfNumber{&a.EmbedDim, "word_embed_proj_dim", c.ProjectDim, a.Hidden},
	)
	if err != nil {
		return err
	}
	return c.activation(a, c.ActivationFunction, "relu")
}

func hfBigCode(c *hfConfig, a *architecture) error {
	if err := hfGPT2(c, a); err != nil {
		return err
	}
	if orBool(c.MultiQuery, true) {
		a.KVHeads = 1
	}
	return c.activation(a, c.ActivationFunction, "gelu_pytorch_tanh")
}
