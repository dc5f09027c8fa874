package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Bloom: LayerNorm, biases of scores in place of rotation, packed projections.
var Bloom = register(&Family{
	Name:  "BLOOM",
	style: style{names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm, embedded: bloomEmbedded, block: bloomBlock, still: true, mlp: bloomMLP, attention: bloomAttention},
	Types: []Type{
		{Name: "bloom", Base: "BloomModel", Keys: falconKeys, Read: readBLOOM},
	},
	GGUF: []GGUF{
		{Name: "bloom", With: Transformer{Bias: true}},
	},
})

func bloomEmbedded(c Transformer) []tape.Layer {
	return []tape.Layer{tape.Named{Name: "word_embeddings_layernorm", Layer: layer.LayerNorm{Size: c.Hidden}}}
}

func bloomMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseBloomGELU)
	return plainMLP("dense_h_to_4h", "gelu_impl", "dense_4h_to_h")(c)
}

func bloomAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Batched = true, true, packedNames, true
}

func bloomBlock(c Transformer, b blockParts) tape.Layer { return normedBefore("", "")(c, b) }

func readBLOOM(c *Config, a *Model) {
	if c.flag("apply_residual_connection_post_layernorm", false) {
		c.unknown("apply_residual_connection_post_layernorm", "true")
	}
	c.set("intermediate_size", 4*min(c.whole("hidden_size", 0), largestNumber/4))
	a.Bias, a.Dropout = true, c.dropout("hidden_dropout")
	c.decoder(a, "BloomForCausalLM", 0, true)
}
