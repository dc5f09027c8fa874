package family

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

// Granite: Llama with constant factors.
var Granite = register(&Family{
	Name:  "Granite",
	style: style{embedded: multiplied, block: multipliedBlock, after: multiplied},
	Types: []Type{
		{Name: "granite", Base: "GraniteModel", Read: readGranite},
	},
	GGUF: []GGUF{
		{Name: "granite", Biases: true},
	},
})

// GraniteMoE: Granite with a mixture.
var GraniteMoE = register(&Family{
	Name:  "Granite MoE",
	style: style{names: decoderNames{mlp: "block_sparse_moe"}, embedded: multiplied, block: multipliedBlock, after: multiplied, mixture: routedBy(layer.TopRouter)},
	Types: []Type{
		{Name: "granitemoe", Base: "GraniteMoeModel", Read: readGraniteMoE},
	},
	GGUF: []GGUF{
		{Name: "granitemoe"},
	},
})

func readGranite(c *Config, a *Model) {
	c.sameBias(a)
	c.likeLlama(a, "GraniteForCausalLM")
}

func readGraniteMoE(c *Config, a *Model) {
	a.Bias = c.flag("attention_bias", false)
	if a.Bias {
		c.unknown("attention_bias", "true")
	}
	c.likeLlama(a, "GraniteMoeForCausalLM")
	c.mixture(a, "num_local_experts", 8, 2)
}
