package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Llama has RMSNorm before each part, rotary positions, a gated MLP and no biases. The other
// families say where they differ from it.
var Llama = &Family{
	Name:  "Llama",
	Types: []Type{{Name: "llama", Base: "LlamaModel", Read: readLlama, Text: true}},
	GGUF:  []GGUF{{Name: "llama", Biases: true}, {Name: "internlm2"}, {Name: "baichuan"}, {Name: "xverse"}, {Name: "minicpm", Biases: true}},
}

// SmolLM3 is Llama with some layers that do not rotate.
var SmolLM3 = &Family{
	Name:  "SmolLM3",
	Types: []Type{{Name: "smollm3", Base: "SmolLM3Model", Read: readSmolLM3}},
	GGUF:  []GGUF{{Name: "smollm3", Biases: true, Read: ggufSmolLM3}},
}

// Arcee is Llama with an MLP without a gate, and squared ReLU.
var Arcee = &Family{
	Name:  "Arcee",
	style: style{mlp: nemotronMLP},
	Types: []Type{{Name: "arcee", Base: "ArceeModel", Read: readArcee}},
	GGUF:  []GGUF{{Name: "arcee"}},
}

func nemotronMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseSquaredReLU), NoBias: !c.Bias && !c.MLPBias, Names: &[3]string{"up_proj", "act_fn", "down_proj"}}
}

// readSmolLM3 reads a Llama with some layers that do not rotate.
func readSmolLM3(c *Config, a *Model) {
	c.biases(a)
	c.likeLlama(a)
	if c.Flag("use_sliding_window", false) {
		c.Windows(a, 0, func(int) bool { return false })
	}
	c.unrotated(a)
}

func readLlama(c *Config, a *Model) {
	c.decoder(a, 0, false)
	a.ContextMask = true
	c.biases(a)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

func readArcee(c *Config, a *Model) {
	c.biases(a)
	c.decoder(a, 0, false)
	c.Activation(a, c.Word("hidden_act"), "relu2")
}

func ggufSmolLM3(_ *Metadata, a *Model) { unrotatedFourth(a, 0) }

// Mistral is Llama with a window; Mixtral also has a mixture.
var Mistral = &Family{
	Name: "Mistral",
	Types: []Type{
		{Name: "mistral", Base: "MistralModel", Read: readMistral, Text: true},
		{Name: "mixtral", Base: "MixtralModel", Read: readMixtral},
	},
}

// Ministral3 is Llama with queries scaled by position.
var Ministral3 = &Family{
	Name:  "Ministral 3",
	style: style{attention: func(_ Transformer, a *layer.Attention) { a.ScaledQueries = true }},
	Types: []Type{{Name: "ministral3", Base: "Ministral3Model", Read: readMinistral3, Text: true}},
	GGUF:  []GGUF{{Name: "mistral3", Biases: true}},
}

func readMistral(c *Config, a *Model) {
	c.decoder(a, 8, false)
	a.Window = c.Whole("sliding_window", 0)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

func readMixtral(c *Config, a *Model) {
	c.decoder(a, 8, false)
	a.Window = c.Whole("sliding_window", 0)
	c.Activation(a, c.Word("hidden_act"), "silu")
	c.mixture(a, "num_local_experts", 8, 2)
}

func readMinistral3(c *Config, a *Model) {
	a.Window = c.Whole("sliding_window", 0)
	c.likeLlama(a)
}
