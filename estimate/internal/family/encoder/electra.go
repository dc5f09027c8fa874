package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// ELECTRA is BERT without a pooler, whose embedding may be narrower.
var ELECTRA = family.Register(&family.Family{
	Name:   "ELECTRA",
	Layers: electra,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "electra", Base: "ElectraModel", Read: readELECTRA},
	},
})

// detects is an ELECTRA with the head that finds replaced tokens.
type detects struct{}

// electra builds ELECTRA.
func electra(c family.Transformer) []tape.Layer {
	width := setting.Or(c.EmbedDim, c.Hidden)
	layers := []tape.Layer{tape.Named{Name: "embeddings", Layer: bertEmbeddings(c, family.Positions{Num: c.Positions, Dim: width, Buffered: true})}}
	if width != c.Hidden {
		layers = append(layers, tape.Named{Name: "embeddings_project", Layer: layer.Linear{In: width, Out: c.Hidden}})
	}
	layers = append(layers, tape.Named{Name: "encoder", Layer: tape.Sequential{tape.Named{Name: "layer", Layer: tape.Repeat{N: c.Blocks, Layer: bertBlock(c)}}}})
	switch {
	case c.Classes != 0:
		return append(layers, firstClassifier(c, layer.GELU{}))
	case family.Own[detects](c) != nil:
		return append(layers, tape.Named{Name: "discriminator_predictions", Layer: tape.Sequential{
			tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
			tape.Inlined{Layer: c.Activation.Layer(layer.UseGELU)},
			tape.Named{Name: "dense_prediction", Layer: layer.Linear{In: c.Hidden, Out: 1}},
		}})
	case c.MaskedLM:
		head := layer.Linear{In: width, Out: c.Vocab, Split: nn.ByColumns}
		if c.Tied {
			head.Tied = ".embeddings.word_embeddings.weight"
		}
		return append(layers, tape.Named{Name: "generator_predictions", Layer: tape.Sequential{
			tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: width}},
			tape.Inlined{Layer: layer.GELU{}},
			tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: width}},
		}}, tape.Named{Name: "generator_lm_head", Layer: head})
	}
	return layers
}

func readELECTRA(c *family.Config, a *family.Model) {
	class := c.Class("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification")
	c.Unset("architectures") // BERT's heads have other names
	bertSettings(c, a, "Electra")
	switch class {
	case "ElectraForPreTraining":
		a.Own = &detects{}
	case "ElectraForMaskedLM":
		a.MaskedLM = true
	case "ElectraForSequenceClassification":
		a.Classes = c.Labels()
	}
	c.Number(&a.EmbedDim, "embedding_size", 128)
}
