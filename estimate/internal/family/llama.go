package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var Llama = register(&Family{
	Name: "Llama",
	Types: []Type{
		{Name: "llama", Base: "LlamaModel", Read: readLlama, Text: true},
	},
	GGUF: []GGUF{
		{Name: "llama", Biases: true},
	},
})

var SmolLM3 = register(&Family{
	Name: "SmolLM3",
	Types: []Type{
		{Name: "smollm3", Base: "SmolLM3Model", Read: readSmolLM3},
	},
	GGUF: []GGUF{
		{Name: "smollm3", Biases: true, Read: ggufSmolLM3},
	},
})

// Arcee: Llama with an MLP without a gate, squared ReLU.
var Arcee = register(&Family{
	Name:  "Arcee",
	style: style{mlp: nemotronMLP},
	Types: []Type{
		{Name: "arcee", Base: "ArceeModel", Read: readArcee},
	},
	GGUF: []GGUF{
		{Name: "arcee"},
	},
})

func nemotronMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseSquaredReLU), NoBias: !c.Bias, Names: &[3]string{"up_proj", "act_fn", "down_proj"}}
}

// readSmolLM3 reads a Llama some of whose layers do not rotate.
func readSmolLM3(c *Config, a *Model) {
	c.sameBias(a)
	c.likeLlama(a, "SmolLM3ForCausalLM")
	if c.flag("use_sliding_window", false) {
		c.windows(a, 0, func(int) bool { return false })
	}
	c.unrotated(a)
}

func readLlama(c *Config, a *Model) {
	c.decoder(a, "LlamaForCausalLM", 0, false)
	c.sameBias(a)
	c.activation(a, c.text("hidden_act"), "silu")
}

func readArcee(c *Config, a *Model) {
	c.sameBias(a)
	c.decoder(a, "ArceeForCausalLM", 0, false)
	c.activation(a, c.text("hidden_act"), "relu2")
}

func ggufSmolLM3(_ *Metadata, a *Model) { a.unrotatedFourth(0) }
