package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Falcon: LayerNorm, packed projections, few keys and values.
var Falcon = register(&Family{
	Name:  "Falcon",
	style: style{names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm, block: falconBlock, attention: falconAttention, mlp: plainMLP("dense_h_to_4h", "act", "dense_4h_to_h")},
	Types: []Type{
		{Name: "falcon", Base: "FalconModel", Keys: falconKeys, Read: readFalcon},
	},
	GGUF: []GGUF{
		{Name: "falcon", With: Transformer{Parallel: true, Activation: layer.UseGELU}, Read: ggufFalcon},
	},
})

func falconAttention(c Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Copied, a.Masked = true, true, packedNames, true, true
	a.Spread = c.TwoNorms
	if c.Alibi {
		a.Rotary, a.Biased, a.Copied = false, true, false
	}
}

func falconBlock(c Transformer, b blockParts) tape.Layer {
	switch {
	case c.Parallel && c.TwoNorms:
		return sideBySide("", "", "ln_attn", "ln_mlp")(c, b)
	case c.Parallel:
		return sideBySide("", "", "input_layernorm")(c, b)
	default:
		return normedBefore("", "")(c, b)
	}
}

func readFalcon(c *Config, a *Model) {
	renewed := c.flag("new_decoder_architecture", false)
	a.Bias, a.Alibi = c.flag("bias", false), c.flag("alibi", false)
	a.Parallel = renewed || c.flag("parallel_attn", true)
	a.TwoNorms = renewed && c.whole("num_ln_in_parallel_attn", 2) == 2
	c.set("intermediate_size", c.whole("ffn_hidden_size", 4*min(c.whole("hidden_size", 0), largestNumber/4)))
	switch {
	case renewed:
		c.move("num_key_value_heads", "num_kv_heads")
	case c.flag("multi_query", true):
		c.set("num_key_value_heads", 1)
	default:
		c.unset("num_key_value_heads")
	}
	c.decoder(a, "FalconForCausalLM", 0, true)
	c.activation(a, c.text("activation"), "gelu")
}

var falconKeys = map[string]string{"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"}

func ggufFalcon(m *Metadata, a *Model) { a.TwoNorms = m.has("blk.0.attn_norm_2.weight") }
