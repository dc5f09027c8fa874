package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Falcon has LayerNorm, packed projections, few keys and values.
var Falcon = &Family{
	Name:  "Falcon",
	style: style{raw: true, names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm, block: falconBlock, attention: falconAttention, mlp: func(c Transformer) tape.Layer { return plainMLP(c, "dense_h_to_4h", "act", "dense_4h_to_h") }},
	Types: []Type{{Name: "falcon", Base: "FalconModel", Keys: falconKeys, Read: readFalcon}},
	GGUF:  []GGUF{{Name: "falcon", With: Transformer{Parallel: true, Activation: layer.UseGELU}, Read: ggufFalcon}},
}

// FalconParts are the settings that only Falcon has.
type FalconParts struct {
	TwoNorms bool // attention and MLP, if parallel, each have a norm
	Alibi    bool // positions are biases of the scores instead of rotation
}

func falcon(c Transformer) FalconParts {
	if own := Own[FalconParts](c); own != nil {
		return *own
	}
	return FalconParts{}
}

func falconAttention(c Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Copied, a.Masked = true, true, packedNames, true, true
	a.Spread = falcon(c).TwoNorms
	if falcon(c).Alibi {
		a.Rotary, a.Biased, a.Copied = false, true, false
	}
}

func falconBlock(c Transformer, b blockParts) tape.Layer {
	switch {
	case c.Parallel && falcon(c).TwoNorms:
		return sideBySide(b, "", "", "ln_attn", "ln_mlp")
	case c.Parallel:
		return sideBySide(b, "", "", "input_layernorm")
	default:
		return normedBefore(b, "", "")
	}
}

func readFalcon(c *Config, a *Model) {
	renewed := c.Flag("new_decoder_architecture", false)
	a.Bias = c.Flag("bias", false)
	a.Parallel = renewed || c.Flag("parallel_attn", true)
	a.Own = &FalconParts{TwoNorms: renewed && c.Whole("num_ln_in_parallel_attn", 2) == 2, Alibi: c.Flag("alibi", false)}
	c.Set("intermediate_size", c.Whole("ffn_hidden_size", 4*min(c.Whole("hidden_size", 0), LargestNumber/4)))
	switch {
	case renewed:
		c.Move("num_key_value_heads", "num_kv_heads")
	case c.Flag("multi_query", true):
		c.Harmless("num_kv_heads") // it has no effect here
		c.Set("num_key_value_heads", 1)
	default:
		c.Follows("num_kv_heads", c.Whole("num_attention_heads", 0))
		c.Unset("num_key_value_heads")
	}
	c.decoder(a, 0, true)
	c.Activation(a, c.Word("activation"), "gelu")
}

var falconKeys = map[string]string{"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"}

func ggufFalcon(m *Metadata, a *Model) {
	a.Own = &FalconParts{TwoNorms: m.has("blk.0.attn_norm_2.weight")}
}

// Bloom has LayerNorm, biases of scores in place of rotation, packed projections.
var Bloom = &Family{
	Name:  "BLOOM",
	style: style{raw: true, names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm, embedded: bloomEmbedded, block: bloomBlock, still: true, mlp: bloomMLP, attention: bloomAttention},
	Types: []Type{{Name: "bloom", Base: "BloomModel", Keys: falconKeys, Read: readBLOOM}},
	GGUF:  []GGUF{{Name: "bloom", With: Transformer{Bias: true}}},
}

func bloomEmbedded(c Transformer) []tape.Layer {
	return []tape.Layer{tape.As("word_embeddings_layernorm", layer.LayerNorm{Size: c.Hidden}), tape.Inline(layer.BatchedMasks{Heads: c.Heads})}
}

func bloomMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseBloomGELU)
	return plainMLP(c, "dense_h_to_4h", "gelu_impl", "dense_4h_to_h")
}

func bloomAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Batched = true, true, packedNames, true
}

func bloomBlock(c Transformer, b blockParts) tape.Layer { return normedBefore(b, "", "") }

func readBLOOM(c *Config, a *Model) {
	if c.Flag("apply_residual_connection_post_layernorm", false) {
		c.Unknown("apply_residual_connection_post_layernorm", "true")
	}
	c.Set("intermediate_size", 4*min(c.Whole("hidden_size", 0), LargestNumber/4))
	a.Bias, a.Dropout = true, c.Dropout("hidden_dropout")
	c.decoder(a, 0, true)
}
