package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Phi has attention and MLP in parallel, LayerNorm, partly rotary, biases (phi-1, phi-2).
var Phi = &Family{
	Name: "Phi",
	style: style{names: decoderNames{last: "final_layernorm"}, half: true, headBias: true, norm: layerNorm, embedded: phiEmbedded, block: func(_ Transformer, b blockParts) tape.Layer {
		return sideBySide(b, "resid_dropout", "resid_dropout", "input_layernorm")
	}, attention: phiAttention, mlp: phiMLP},
	Types: []Type{{Name: "phi", Base: "PhiModel", Read: readPhi}},
	GGUF:  []GGUF{{Name: "phi2", Rotary: true}},
}

// Phi3 is Llama with packed projections.
var Phi3 = &Family{
	Name: "Phi-3",
	style: style{block: func(_ Transformer, b blockParts) tape.Layer {
		return normedBefore(b, "resid_attn_dropout", "resid_mlp_dropout")
	}, attention: packedAttention, mlp: packedMLP},
	Types: []Type{{Name: "phi3", Base: "Phi3Model", Text: true, Read: readPhi3}},
	GGUF:  []GGUF{{Name: "phi3", Rotary: true}},
}

// PhiMoE has LayerNorm and a mixture.
var PhiMoE = &Family{
	Name:  "Phi MoE",
	style: style{norm: layerNorm, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return routedBy(m, layer.SparseMixer) }},
	Types: []Type{{Name: "phimoe", Base: "PhimoeModel", Read: readPhiMoE}},
	GGUF:  []GGUF{{Name: "phimoe", Read: ggufPhiMoE}},
}

// plainEmbeddings is a Phi that applies no Dropout to embeddings.
type plainEmbeddings struct{}

func phiEmbedded(c Transformer) []tape.Layer {
	if Own[plainEmbeddings](c) != nil {
		c.Dropout = 0
	}
	return []tape.Layer{tape.As("embed_dropout", c.Drop())}
}

func phiMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU)}
}

func phiAttention(c Transformer, a *layer.Attention) {
	a.NoBias, a.NoOutBias, a.Joined = false, false, true
	a.RotaryDim = c.rotated()
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "dense"}
}

func readPhiMoE(c *Config, a *Model) {
	a.Bias, a.HeadBias, a.Window = c.Flag("attention_bias", false), c.Flag("lm_head_bias", false), c.Whole("sliding_window", 0)
	c.likeLlama(a)
	c.mixture(a, "num_local_experts", 16, 2)
}

func readPhi(c *Config, a *Model) {
	c.decoder(a, 0, false)
	if c.Flag("qk_layernorm", false) {
		c.Unknown("qk_layernorm", "true")
	}
	a.Dropout = max(c.Dropout("resid_pdrop"), c.Dropout("embd_pdrop"))
	if c.Dropout("embd_pdrop") == 0 {
		a.Own = &plainEmbeddings{}
	}
	c.Activation(a, c.Word("hidden_act"), "gelu_new")
	c.rotaryPart(a, 0.5)
}

func readPhi3(c *Config, a *Model) {
	c.decoder(a, 0, false)
	a.Window = c.Whole("sliding_window", 0)
	a.Dropout = c.Dropout("resid_pdrop")
	c.Activation(a, c.Word("hidden_act"), "silu")
	c.rotaryPart(a, 1)
}

func ggufPhiMoE(m *Metadata, a *Model) {
	a.Bias, a.HeadBias = m.has("blk.0.attn_output.bias"), m.has("output.bias")
}
