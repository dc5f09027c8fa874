package family

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

var Mistral = register(&Family{
	Name: "Mistral",
	Types: []Type{
		{Name: "mistral", Base: "MistralModel", Read: readMistral, Text: true},
		{Name: "mixtral", Base: "MixtralModel", Read: readMixtral},
	},
})

// Ministral3: Llama with queries that are weighed by their place.
var Ministral3 = register(&Family{
	Name:  "Ministral 3",
	style: style{attention: func(_ Transformer, a *layer.Attention) { a.Placed = true }},
	Types: []Type{
		{Name: "ministral3", Base: "Ministral3Model", Read: readMinistral3, Text: true},
	},
})

func readMistral(c *Config, a *Model) {
	c.decoder(a, "MistralForCausalLM", 8, false)
	a.Window = c.whole("sliding_window", 0)
	c.activation(a, c.text("hidden_act"), "silu")
}

func readMixtral(c *Config, a *Model) {
	c.decoder(a, "MixtralForCausalLM", 8, false)
	a.Window = c.whole("sliding_window", 0)
	c.activation(a, c.text("hidden_act"), "silu")
	c.mixture(a, "num_local_experts", 8, 2)
}

func readMinistral3(c *Config, a *Model) {
	a.Window = c.whole("sliding_window", 0)
	c.likeLlama(a, "Ministral3ForCausalLM")
}
