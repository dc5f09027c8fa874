package estimate

// hfFamilies has the families by model_type. The functions follow the modules of
// Hugging Face's transformers (src/transformers/models/*/modeling_*.py) and take the
// values of keys that are absent from configuration_*.py there.
var hfFamilies = map[string]struct {
	base string // the class without a head, meant where there are no architectures
	read func(*hfConfig, *architecture) error
}{
	"llama":       {"LlamaModel", hfLlama},
	"mistral":     {"MistralModel", hfMistral},
	"mixtral":     {"MixtralModel", hfMixtral},
	"qwen2":       {"Qwen2Model", hfQwen2},
	"qwen3":       {"Qwen3Model", hfQwen3},
	"qwen3_moe":   {"Qwen3MoeModel", hfQwen3MoE},
	"olmo2":       {"Olmo2Model", hfOLMo2},
	"gemma":       {"GemmaModel", hfGemma},
	"gemma2":      {"Gemma2Model", hfGemma2},
	"gemma3_text": {"Gemma3TextModel", hfGemma3},
	"gemma3":      {"Gemma3Model", hfGemma3Vision},
	"gpt_oss":     {"GptOssModel", hfGPTOSS},
	"deepseek_v3": {"DeepseekV3Model", hfDeepSeekV3},
	"phi":         {"PhiModel", hfPhi},
	"phi3":        {"Phi3Model", hfPhi3},
	"gpt2":        {"GPT2Model", hfGPT2},
	"bert":        {"BertModel", hfBERT},
	"vit":         {"ViTModel", hfViT},
}

// decoder reads what all decoders with rotary positions have in common. kvHeads is the
// number where the key is absent, 0 for as many as heads.
func (c *hfConfig) decoder(a *architecture, causal string, kvHeads int, tied bool) error {
	class, err := c.class(causal)
	if err != nil {
		return err
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", c.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", c.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
	)
	if err != nil {
		return err
	}
	a.NoHead = class != causal
	a.Tied = orBool(c.Tied, tied)
	if c.HeadSize != nil {
		if err := c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 0}); err != nil {
			return err
		}
	}
	return c.numbers(hfNumber{&a.KVHeads, "num_key_value_heads", c.KVHeads, or(kvHeads, a.Heads)})
}

// hfActivations has the functions whose memory is known, by their names.
var hfActivations = map[string]Activation{
	"silu": UseSiLU, "swish": UseSiLU, "gelu": UseGELU, "gelu_new": UseNewGELU,
	"gelu_pytorch_tanh": UseGELUTanh, "relu": UseReLU, "quick_gelu": UseQuickGELU,
}

func (c *hfConfig) activation(a *architecture, name, without string) error {
	var ok bool
	if a.Activation, ok = hfActivations[or(name, without)]; !ok {
		return c.unknown("activation", name)
	}
	return nil
}

// rotaryPart reads what part of a head rotates.
func (c *hfConfig) rotaryPart(a *architecture, without float64) error {
	part := without
	if c.Rotary != nil {
		part = *c.Rotary
	}
	if !(part > 0 && part <= 1) {
		return &FileError{File: c.file, Where: "partial_rotary_factor", Reason: "it is not above 0 and at most 1"}
	}
	a.RotaryDim = int(part * float64(a.headSize()))
	return nil
}

// noBias refuses projections of attention with biases.
func (c *hfConfig) noBias() error {
	if orBool(c.AttentionBias, false) {
		return c.unknown("attention_bias", "true")
	}
	return nil
}

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
	a.Family = OLMo2
	return c.activation(a, c.HiddenAct, "silu")
}

func hfGPT2(c *hfConfig, a *architecture) error {
	class, err := c.class("GPT2LMHeadModel")
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
	a.Family = GPT2
	a.NoHead, a.Tied = class != "GPT2LMHeadModel", orBool(c.Tied, true)
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
	a.Family = Phi
	a.Dropout = max(c.ResidualDropout, c.EmbeddingDropout)
	if err := c.activation(a, c.HiddenAct, "gelu_new"); err != nil {
		return err
	}
	return c.rotaryPart(a, 0.5)
}

func hfPhi3(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Phi3ForCausalLM", 0, false); err != nil {
		return err
	}
	a.Family, a.Window = Phi3, c.window()
	a.Dropout = c.ResidualDropout
	if err := c.activation(a, c.HiddenAct, "silu"); err != nil {
		return err
	}
	return c.rotaryPart(a, 1)
}
