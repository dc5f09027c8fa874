package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ELECTRA is BERT without a pooler, whose embedding may be narrower.
var ELECTRA = &family.Family{
	Name:   "ELECTRA",
	Layers: electra,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "electra", Base: "ElectraModel", Read: readELECTRA}},
}

// detects is an ELECTRA with the head that finds replaced tokens.
type detects struct{}

// electra builds ELECTRA.
func electra(c family.Transformer) []tape.Layer {
	width := setting.Or(c.EmbedDim, c.Hidden)
	t := text{width: width, added: bertEmbeddings(c, family.Positions{Num: c.Positions, Dim: width, Buffered: true}), blocks: c.Blocks, block: bertBlock(c)}
	if width != c.Hidden {
		t.project = []tape.Layer{tape.As("embeddings_project", layer.Linear{In: width, Out: c.Hidden})}
	}
	layers := t.layers(c)
	switch {
	case c.Classes != 0 && c.Pooler:
		layers = append(layers, family.First{}, tape.As("sequence_summary.summary", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.Inline(layer.GELU{}))
		return append(layers, classifier(c, c.Drop())...)
	case c.Classes != 0 && c.NoHead:
		return append(layers, classifier(c, c.Drop())...)
	case c.Classes != 0:
		return append(layers, firstClassifier(c, layer.GELU{}))
	case family.Own[detects](c) != nil:
		return append(layers, tape.As("discriminator_predictions", tape.Sequential{
			tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}),
			tape.Inline(c.Activation.Layer(layer.UseGELU)),
			tape.As("dense_prediction", layer.Linear{In: c.Hidden, Out: 1}),
		}))
	case c.MaskedLM:
		parts := predictor{width: width, act: layer.GELU{}, tied: ".embeddings.word_embeddings.weight", names: [4]string{"dense", "", "LayerNorm", "generator_lm_head"}}.layers(c)
		return append(layers, tape.As("generator_predictions", parts[:3]), parts[3])
	}
	return layers
}

func readELECTRA(c *family.Config, a *family.Model) {
	class := classes(c, "ForPreTraining", "ForMaskedLM", "ForCausalLM")
	c.Unset("architectures") // BERT's heads have other names
	readBERT(c, a)
	switch {
	case class == "ElectraForPreTraining":
		a.Own = &detects{}
	case class == "ElectraForMaskedLM", writes(c, class):
		a.MaskedLM = true
	default:
		readHead(c, a, class)
	}
	if a.Pooler && (!c.Flag("summary_use_proj", true) || c.Word("summary_activation") != "gelu") {
		c.Unknown("summary_use_proj, summary_activation", "such a value")
	}
	c.Number(&a.EmbedDim, "embedding_size", 128)
}
