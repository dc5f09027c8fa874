package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// RemBERT is BERT whose embeddings and head have widths of their own, and share no weight (transformers'
// modeling_rembert.py).
var RemBERT = &family.Family{
	Name:   "RemBERT",
	Layers: remBERT,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "rembert", Base: "RemBertModel", Read: readRemBERT}},
}

// headOf is the width of the layers that predict tokens.
type headOf struct{ width int }

func remBERT(c family.Transformer) []tape.Layer {
	attention := bertAttention(c)
	attention.Eager, attention.Narrow = true, true
	layers := text{
		width: c.EmbedDim, added: bertEmbeddings(c, family.Positions{Num: c.Positions, Dim: c.EmbedDim, Buffered: true}),
		first: []tape.Layer{tape.As("embedding_hidden_mapping_in", layer.Linear{In: c.EmbedDim, Out: c.Hidden})}, blocks: c.Blocks, block: bertBlockOf(c, attention),
	}.layers(c)
	if !c.NoHead {
		layers = append(layers, c.Pooled())
	}
	switch own := family.Own[headOf](c); {
	case c.MaskedLM && own != nil:
		head := predictor{width: own.width, act: c.Activation.Layer(layer.UseGELU), names: [4]string{"dense", "activation", "LayerNorm", "decoder"}}
		return append(layers, tape.As("cls.predictions", head.layers(c)))
	case c.Classes != 0:
		return append(layers, classifier(c, headDropout(c))...)
	}
	return layers
}

func readRemBERT(c *family.Config, a *family.Model) {
	readBERT(c, a)
	head := &headOf{}
	a.Own, a.Tied, a.HeadBias, a.Stored = head, false, false, nil
	a.HeadDropout = c.Dropout("classifier_dropout_prob")
	c.Harmless("tie_word_embeddings") // its classes tie nothing
	c.Number(&a.EmbedDim, "input_embedding_size", 256)
	c.Number(&head.width, "output_embedding_size", 1664)
}
