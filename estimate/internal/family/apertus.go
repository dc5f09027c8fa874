package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Apertus is Llama with norms of queries and keys, and an MLP without a gate whose activation has
// parameters (modeling_apertus.py).
var Apertus = &Family{
	Name: "Apertus",
	style: style{mlp: apertusMLP, block: func(_ Transformer, b blockParts) tape.Layer {
		return normedBeforeAs(b, "attention_layernorm", "feedforward_layernorm", "", "")
	}},
	Types: []Type{{Name: "apertus", Base: "ApertusModel", Read: readApertus}},
	GGUF:  []GGUF{{Name: "apertus", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}}},
}

func apertusMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, NoBias: true, Names: &[3]string{"up_proj", "act_fn", "down_proj"}}
}

func readApertus(c *Config, a *Model) {
	a.AttentionBias = c.Flag("attention_bias", false)
	c.decoder(a, 0, false)
	a.QKNorm = layer.NormHeads
	c.Activation(a, c.Word("hidden_act"), "xielu")
}
