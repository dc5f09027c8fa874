package estimate

// hfFamilies has the families by model_type. The functions follow the modules of
// Hugging Face's transformers (src/transformers/models/*/modeling_*.py) and take the
// values of keys that are absent from configuration_*.py there.
var hfFamilies = map[string]struct {
	base string // the class without a head, meant where there are no architectures
	read func(*hfConfig, *architecture) error
}{
	"llama":   {"LlamaModel", hfLlama},
	"mistral": {"MistralModel", hfMistral},
	"mixtral": {"MixtralModel", hfMixtral},
	"qwen2":   {"Qwen2Model", hfQwen2},
	"gemma":   {"GemmaModel", hfGemma},
	"phi":     {"PhiModel", hfPhi},
	"phi3":    {"Phi3Model", hfPhi3},
	"gpt2":    {"GPT2Model", hfGPT2},
	"bert":    {"BertModel", hfBERT},
	"vit":     {"ViTModel", hfViT},
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

func hfQwen2(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "Qwen2ForCausalLM", 32, false); err != nil {
		return err
	}
	a.QKVBias = true
	// sliding_window is off by default, and where it is on, it is so in some layers
	// only: it does not bound the cache of all of them.
	return c.activation(a, c.HiddenAct, "silu")
}

func hfGemma(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "GemmaForCausalLM", 0, true); err != nil {
		return err
	}
	if orBool(c.AttentionBias, false) {
		return c.unknown("attention_bias", "true")
	}
	a.Family = Gemma
	// Gemma runs gelu_pytorch_tanh even where hidden_act says gelu.
	if err := c.activation(a, c.HiddenActivation, "gelu_pytorch_tanh"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 256})
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

// encoder reads what BERT and ViT have in common.
func (c *hfConfig) encoder(a *architecture) error {
	err := c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", c.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", c.Intermediate, 0},
	)
	if err != nil {
		return err
	}
	a.Dropout = max(c.HiddenDropout, c.ProbsDropout)
	return c.activation(a, c.HiddenAct, "gelu")
}

func hfBERT(c *hfConfig, a *architecture) error {
	class, err := c.class("BertForMaskedLM")
	if err != nil {
		return err
	}
	if p := c.PositionEncoding; p != "" && p != "absolute" {
		return c.unknown("position_embedding_type", p)
	}
	if orBool(c.CrossAttention, false) {
		return c.unknown("add_cross_attention", "true")
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	err = c.numbers(
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", c.Context, 0},
		hfNumber{&a.Types, "type_vocab_size", c.TokenTypes, 2},
	)
	a.Family, a.Tied = BERT, orBool(c.Tied, true)
	if class == "BertForMaskedLM" {
		a.NoHead = true // which is the pooler
		a.tail = maskedLM(a.Transformer)
	}
	return err
}

func hfViT(c *hfConfig, a *architecture) error {
	class, err := c.class("ViTForImageClassification")
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) {
		return c.unknown("qkv_bias", "false")
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family = ViT
	if class == "ViTForImageClassification" {
		a.Classes = max(1, len(c.Labels))
		if c.Labels == nil {
			a.Classes = 2 // what transformers takes where there is no id2label
		}
	} else {
		a.tail = vitPooler(a.Transformer)
	}
	return c.numbers(
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 16},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
	)
}
