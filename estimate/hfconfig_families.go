package estimate

import "fmt"

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
	if err := c.qwenWindows(a); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "silu")
}

// noBias refuses projections of attention with biases.
func (c *hfConfig) noBias() error {
	if orBool(c.AttentionBias, false) {
		return c.unknown("attention_bias", "true")
	}
	return nil
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
	a.QKNorm = NormHeads
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
	full := *orNumber(c.FullLayers, 28)
	return c.windows(a, func(layer int) bool { return layer < full })
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
	if c.SparseStep != nil && *c.SparseStep != 1 {
		return c.unknown("decoder_sparse_step", fmt.Sprint(*c.SparseStep))
	}
	for i, layer := range c.DenseLayers {
		if layer != i || i >= a.Blocks {
			return c.unknown("mlp_only_layers", "a list other than that of the first layers")
		}
	}
	a.DenseBlocks, a.Router = len(c.DenseLayers), RoundedRouter
	return c.numbers(
		hfNumber{&a.Experts, "num_experts", c.QwenExperts, 128},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
		hfNumber{&a.ExpertFFN, "moe_intermediate_size", c.ExpertFFN, 768},
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

func hfGemma(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "GemmaForCausalLM", 0, true); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.Family = Gemma
	// Gemma runs gelu_pytorch_tanh even where hidden_act says gelu.
	if err := c.activation(a, c.HiddenActivation, "gelu_pytorch_tanh"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 256})
}

func hfGemma2(c *hfConfig, a *architecture) error {
	err := c.gemma2(a, "Gemma2ForCausalLM")
	if c.Window == nil {
		c.Window = new(4096)
	}
	a.CappedScores, a.CappedLogits = true, true // without the keys too
	if err != nil {
		return err
	}
	return c.windows(a, func(layer int) bool { return layer%2 == 1 })
}

func hfGemma3(c *hfConfig, a *architecture) error {
	if err := c.gemma2(a, "Gemma3ForCausalLM"); err != nil {
		return err
	}
	if c.Window == nil {
		c.Window = new(4096)
	}
	a.QKNorm = NormHeads
	a.CappedScores, a.CappedLogits = c.ScoreCap != nil, c.LogitCap != nil
	every := 6
	if c.WindowPattern != nil {
		every = max(1, *c.WindowPattern)
	}
	return c.windows(a, func(layer int) bool { return (layer+1)%every == 0 })
}

// gemma2 reads what Gemma 2 and 3 have in common.
func (c *hfConfig) gemma2(a *architecture, causal string) error {
	if err := c.decoder(a, causal, 4, true); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.Family = Gemma2
	if err := c.activation(a, c.HiddenActivation, "gelu_pytorch_tanh"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 256})
}

// hfGemma3Vision reads Gemma 3 with its vision tower, which is a SigLIP: the tower is
// counted, and not run.
func hfGemma3Vision(c *hfConfig, a *architecture) error {
	class, err := c.class("Gemma3ForConditionalGeneration")
	if err != nil {
		return err
	}
	if c.Text == nil || c.VisionConfig == nil {
		return &FileError{File: c.file, Where: "text_config, vision_config", Reason: "the key is missing"}
	}
	text, vision := c.Text, c.VisionConfig
	text.file, text.ModelType, text.base, text.Architectures = c.file, c.ModelType, "Gemma3TextModel", nil
	// What transformers takes where text_config leaves it out.
	text.Heads, text.Vocabulary = orNumber(text.Heads, 8), orNumber(text.Vocabulary, 262_208)
	text.Tied = c.Tied
	if err := hfGemma3(text, a); err != nil {
		return err
	}
	a.NoHead = class == c.base
	tower := Transformer{Family: ViT, Activation: UseGELUTanh}
	vision.file = c.file
	err = vision.numbers(
		hfNumber{&tower.Hidden, "hidden_size", vision.HiddenSize, 768},
		hfNumber{&tower.Blocks, "num_hidden_layers", vision.Layers, 12},
		hfNumber{&tower.Heads, "num_attention_heads", vision.Heads, 12},
		hfNumber{&tower.FFN, "intermediate_size", vision.Intermediate, 3072},
		hfNumber{&tower.Image, "image_size", vision.ImageSize, 224},
		hfNumber{&tower.Patch, "patch_size", vision.PatchSize, 16},
		hfNumber{&tower.Channels, "num_channels", vision.Channels, 3},
	)
	if err != nil {
		return err
	}
	seen := architecture{Transformer: tower}
	if err := seen.check(); err != nil {
		return &FileError{File: c.file, Where: "vision_config", Err: err}
	}
	a.beside = siglip(tower, a.Hidden)
	return nil
}

func hfGPTOSS(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "GptOssForCausalLM", 8, false); err != nil {
		return err
	}
	if !orBool(c.AttentionBias, true) {
		return c.unknown("attention_bias", "false")
	}
	a.Family = GPTOSS
	if c.Window == nil {
		c.Window = new(128)
	}
	if err := c.windows(a, func(layer int) bool { return layer%2 == 1 }); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 64},
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 128},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 4},
	)
}

func hfDeepSeekV3(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "DeepseekV3ForCausalLM", 0, false); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	if c.SparseEvery != nil && *c.SparseEvery != 1 {
		return c.unknown("moe_layer_freq", fmt.Sprint(*c.SparseEvery))
	}
	var latent LatentAttention
	shared := 0
	err := c.numbers(
		hfNumber{&a.Experts, "n_routed_experts", c.RoutedExperts, 256},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
		hfNumber{&a.ExpertFFN, "moe_intermediate_size", c.ExpertFFN, 2048},
		hfNumber{&shared, "n_shared_experts", c.SharedExperts, 1},
		hfNumber{&latent.KVRank, "kv_lora_rank", c.KVRank, 512},
		hfNumber{&latent.RopeSize, "qk_rope_head_dim", c.RopeSize, 64},
		hfNumber{&latent.NopeSize, "qk_nope_head_dim", c.NopeSize, 128},
		hfNumber{&latent.ValueSize, "v_head_dim", c.ValueSize, 128},
	)
	if err != nil {
		return err
	}
	if shared > maxBlocks {
		return &FileError{File: c.file, Where: "n_shared_experts", Reason: fmt.Sprintf("%d are more than %d", shared, maxBlocks)}
	}
	if c.QueryRank != nil { // null where queries are projected at once
		if err := c.numbers(hfNumber{&latent.QueryRank, "q_lora_rank", c.QueryRank, 0}); err != nil {
			return err
		}
	}
	a.DenseBlocks = 3
	if c.DenseFirst != nil {
		a.DenseBlocks = max(0, min(*c.DenseFirst, a.Blocks))
	}
	a.KVHeads, a.Router, a.SharedFFN, a.Latent = 0, SigmoidRouter, shared*a.ExpertFFN, &latent
	return c.activation(a, c.HiddenAct, "silu")
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
	class, err := c.class("BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification")
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
	switch class { // NoHead is without the pooler
	case "BertForMaskedLM":
		a.NoHead, a.tail = true, maskedLM(a.Transformer)
	case "BertForSequenceClassification", "BertForTokenClassification":
		a.NoHead = class == "BertForTokenClassification"
		a.tail = []Layer{Named{"dropout", a.dropout()}, Named{"classifier", Linear{In: a.Hidden, Out: c.labels()}}}
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
		a.Classes = c.labels()
	} else {
		a.tail = vitPooler(a.Transformer)
	}
	return c.numbers(
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 16},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
	)
}
