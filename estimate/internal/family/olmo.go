package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// OLMo has LayerNorm without weights, gated MLP.
var OLMo = &Family{
	Name:  "OLMo",
	style: style{norm: olmoNorm, attention: olmoAttention},
	Types: []Type{{Name: "olmo", Base: "OlmoModel", Read: readOLMo}},
	GGUF:  []GGUF{{Name: "olmo"}},
}

// OLMo2 is Llama with norms after each part, and of queries and keys.
var OLMo2 = &Family{
	Name:  "OLMo 2",
	style: style{norm: lateNorm, attention: olmo2Attention, block: normedAfter},
	Types: []Type{
		{Name: "olmo2", Base: "Olmo2Model", Read: readOLMo2},
		{Name: "olmo3", Base: "Olmo3Model", Read: readOLMo3},
	},
	GGUF: []GGUF{{Name: "olmo2", Window: 4}},
}

// OLMoE is Llama with a mixture, and norms over all heads together.
var OLMoE = &Family{
	Name:  "OLMoE",
	Types: []Type{{Name: "olmoe", Base: "OlmoeModel", Read: readOLMoE}},
	GGUF: []GGUF{
		{Name: "olmoe", With: Transformer{Attention: Attention{QKNorm: layer.NormAllHeads}, Mixture: Mixture{Router: layer.RoundedRouter, UnscaledTopK: true}}, Biases: true},
	},
}

// FlexOLMo is OLMo 2 with the mixture of OLMoE.
var FlexOLMo = &Family{
	Name:  "FlexOLMo",
	style: style{norm: lateNorm, attention: olmo2Attention, block: normedAfter},
	Types: []Type{{Name: "flex_olmo", Base: "FlexOlmoModel", Keys: map[string]string{"num_local_experts": "num_experts"}, Read: readOLMoE}},
}

func olmoNorm(c Transformer) tape.Layer { return layer.PlainNorm{Size: c.Hidden} }

// clipped is an OLMo that clamps queries, keys and values.
type clipped struct{}

func olmoAttention(c Transformer, a *layer.Attention) {
	a.Clipped, a.Tables = Own[clipped](c) != nil, alloc.Float32
}

// olmo2Attention uses a second rotary table if there are layers with a window and without.
func olmo2Attention(c Transformer, a *layer.Attention) {
	a.QKNorm, a.LateNorm, a.Tables = layer.NormAllHeads, true, alloc.Float32
	for _, kind := range c.Kinds {
		if kind&Windowed != 0 {
			a.Rotations = 2
		}
	}
}

func readOLMo(c *Config, a *Model) {
	c.noBias()
	if c.Has("clip_qkv") {
		a.Own = &clipped{}
	}
	c.likeLlama(a)
}

func readOLMo3(c *Config, a *Model) {
	c.noBias()
	c.likeLlama(a)
	c.Windows(a, 0, each(4))
}

func readOLMo2(c *Config, a *Model) {
	c.decoder(a, 0, false)
	c.noBias()
	c.Activation(a, c.Word("hidden_act"), "silu")
}

func readOLMoE(c *Config, a *Model) {
	a.AttentionBias = c.Flag("attention_bias", false)
	c.likeLlama(a)
	a.QKNorm = layer.NormAllHeads
	if c.Has("clip_qkv") {
		c.Unknown("clip_qkv", "a number")
	}
	a.Router, a.UnscaledTopK = layer.RoundedRouter, !c.Flag("norm_topk_prob", false)
	c.mixture(a, "num_experts", 64, 8)
}
