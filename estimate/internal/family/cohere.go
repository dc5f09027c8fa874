package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Cohere has attention and MLP in parallel, LayerNorm without biases, gated MLP (Command R).
var Cohere = &Family{
	Name:  "Cohere",
	style: style{norm: cohereNorm, block: func(_ Transformer, b blockParts) tape.Layer { return sideBySide(b, "", "", "input_layernorm") }, attention: cohereAttention, after: multiplied},
	Types: []Type{
		{Name: "cohere", Base: "CohereModel", Read: readCohere},
		{Name: "cohere2", Base: "Cohere2Model", Read: readCohere2},
	},
	GGUF: []GGUF{
		{Name: "command-r", Read: (*Metadata).headNorms},
		{Name: "cohere2", Window: 4, Read: ggufCohere2},
	},
}

// EXAONE4 is Llama with norms after each part.
var EXAONE4 = &Family{
	Name:  "EXAONE 4",
	style: style{block: normedAfter},
	Types: []Type{{Name: "exaone4", Base: "Exaone4Model", Read: readEXAONE4}},
	GGUF:  []GGUF{{Name: "exaone4", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Window: 4, Read: stillBeyondWindow}},
}

func cohereNorm(c Transformer) tape.Layer { return layer.WideNorm{Heads: 1, Size: c.Hidden} }

func cohereAttention(c Transformer, a *layer.Attention) {
	if c.QKNorm != layer.NoQKNorm {
		a.HeadNorm = func(heads, size int) tape.Layer { return layer.WideNorm{Heads: heads, Size: size} }
	}
}

func readCohere(c *Config, a *Model) {
	c.noBias()
	if c.Flag("use_qk_norm", false) {
		a.QKNorm = layer.NormHeads
	}
	c.likeLlama(a)
}

// readCohere2 reads Cohere with windows. Layers without a window do not rotate.
func readCohere2(c *Config, a *Model) {
	c.noBias()
	c.likeLlama(a)
	c.turnedWindows(a)
}

// readEXAONE4 reads EXAONE 4. If some layers have a window, those without one do not rotate.
func readEXAONE4(c *Config, a *Model) {
	c.likeLlama(a)
	a.QKNorm = layer.NormHeads
	c.turnedWindows(a)
}

func ggufCohere2(m *Metadata, a *Model) {
	m.headNorms(a)
	a.stillBeyondWindow()
}
