package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Starcoder2 has LayerNorm, biases, an MLP without a gate.
var Starcoder2 = &Family{
	Name:  "StarCoder2",
	style: style{norm: layerNorm, mlp: func(c Transformer) tape.Layer { return plainMLP(c, "c_fc", "act", "c_proj") }, block: starcoderBlock},
	Types: []Type{{Name: "starcoder2", Base: "Starcoder2Model", Read: readStarcoder2}},
	GGUF:  []GGUF{{Name: "starcoder2", With: Transformer{Bias: true, Activation: layer.UseGELUTanh}}},
}

// StableLM has LayerNorm, partly rotary, gated MLP.
var StableLM = &Family{
	Name:  "StableLM",
	style: style{norm: layerNorm, block: stableBlock, attention: stableAttention},
	Types: []Type{{Name: "stablelm", Base: "StableLmModel", Read: readStableLM}},
	GGUF:  []GGUF{{Name: "stablelm", Rotary: true, Read: ggufStableLM}},
}

// Nemotron has LayerNorm with shifted weights, squared ReLU.
var Nemotron = &Family{
	Name:  "Nemotron",
	style: style{norm: shiftedLayerNorm, mlp: nemotronMLP, attention: joinedAttention},
	Types: []Type{{Name: "nemotron", Base: "NemotronModel", Read: readNemotron}},
	GGUF:  []GGUF{{Name: "nemotron", Rotary: true, Biases: true}},
}

func shiftedLayerNorm(c Transformer) tape.Layer { return layer.ShiftedNorm{Size: c.Hidden} }

func stableAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Packed: "", Out: "o_proj", QNorm: "q_layernorm", KNorm: "k_layernorm"}
	if c.QKNorm != layer.NoQKNorm {
		a.HeadNorm = func(heads, size int) tape.Layer { return layer.EachHead{Heads: heads, Size: size} }
	}
}

func stableBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide(b, "", "dropout", "input_layernorm")
	}
	return normedBefore(b, "", "dropout")
}

func readStarcoder2(c *Config, a *Model) {
	a.Bias, a.Window, a.Dropout = c.Flag("use_bias", true), c.Whole("sliding_window", 0), c.Dropout("residual_dropout")
	c.likeLlama(a)
}

func readStableLM(c *Config, a *Model) {
	a.QKVBias, a.Parallel, a.Dropout = c.Flag("use_qkv_bias", false), c.Flag("use_parallel_residual", false), c.Dropout("hidden_dropout")
	if c.Flag("qk_layernorm", false) {
		a.QKNorm = layer.NormHeads
	}
	c.rotatedInPart(a, 0.25)
}

func readNemotron(c *Config, a *Model) {
	c.sameBias(a)
	c.rotatedInPart(a, 0.5)
}

func ggufStableLM(m *Metadata, a *Model) {
	m.headNorms(a)
	a.Parallel, a.QKVBias = !m.has("blk.0.ffn_norm.weight"), m.has("blk.0.attn_q.bias")
}
