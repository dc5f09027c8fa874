package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma is Llama with scaled norms.
var Gemma = &Family{
	Name:  "Gemma",
	style: style{untabled: true, scaled: true, mlp: gemmaMLP, norm: gemmaNorm, attention: func(_ Transformer, a *layer.Attention) { a.Shifted = true }},
	Types: []Type{{Name: "gemma", Base: "GemmaModel", Read: readGemma, Text: true}},
	GGUF:  []GGUF{{Name: "gemma", Biases: true}},
}

// Gemma2 is Gemma with norms before and after each part.
var Gemma2 = &Family{
	Name: "Gemma 2",
	style: style{untabled: true, scaled: true, mlp: gemmaMLP, norm: gemmaNorm, attention: gemma2Attention, rotations: gemma3Rotations, block: func(_ Transformer, b blockParts) tape.Layer {
		return normedAround(b, "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
	}},
	Types: []Type{
		{Name: "gemma2", Base: "Gemma2Model", Read: readGemma2, Text: true},
		{Name: "gemma3_text", Base: "Gemma3TextModel", Read: readGemma3},
	},
	GGUF: []GGUF{
		{Name: "gemma2", With: Transformer{Attention: Attention{CappedScores: true}, Head: Head{CappedLogits: true}}, Window: 2},
		{Name: "gemma3", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Window: 6},
	},
}

// VaultGemma is Gemma 2 with Gemma's norms.
var VaultGemma = &Family{
	Name: "VaultGemma",
	style: style{untabled: true, scaled: true, mlp: gemmaMLP, norm: gemmaNorm, attention: gemma2Attention, block: func(_ Transformer, b blockParts) tape.Layer {
		return normedBeforeAs(b, "input_layernorm", "pre_feedforward_layernorm", "", "")
	}},
	Types: []Type{{Name: "vaultgemma", Base: "VaultGemmaModel", Read: readGemma2}},
}

func gemmaNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Shifted: true}
}

func gemmaMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELUTanh), Bias: c.Bias, Thinned: c.kind&Thinned != 0}
}

func gemma2Attention(c Transformer, a *layer.Attention) {
	a.Masks, a.Shifted, a.OutBias = 2, true, c.QKVBias
}

// gemma3Rotations returns the number of rotary tables: in Gemma 3, layers with a window and those
// without have their own.
func gemma3Rotations(c Transformer) int {
	if c.QKNorm != layer.NoQKNorm {
		return 2
	}
	return 1
}

func readGemma(c *Config, a *Model) {
	c.decoder(a, 0, true)
	a.ContextMask = true
	c.noBias()
	// Gemma runs gelu_pytorch_tanh even where hidden_act says gelu.
	c.Activation(a, c.Word("hidden_activation"), "gelu_pytorch_tanh")
	c.Number(&a.HeadSize, "head_dim", 256)
}

func readGemma2(c *Config, a *Model) {
	gemma2(c, a)
	a.CappedScores, a.CappedLogits = true, true // even without the keys
	c.Windows(a, 4096, each(2))
}

func readGemma3(c *Config, a *Model) {
	gemma2(c, a)
	a.QKNorm = layer.NormHeads
	a.CappedScores, a.CappedLogits = c.Has("attn_logit_softcapping"), c.Has("final_logit_softcapping")
	c.Windows(a, 4096, each(max(1, c.Whole("sliding_window_pattern", 6))))
}

// gemma2 reads what Gemma 2 and 3 have in common.
func gemma2(c *Config, a *Model) {
	c.decoder(a, 4, true)
	a.QKVBias = c.Flag("attention_bias", false) // and that of the output
	c.Activation(a, c.Word("hidden_activation"), "gelu_pytorch_tanh")
	c.Number(&a.HeadSize, "head_dim", 256)
}
