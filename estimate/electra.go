package estimate

// electra builds ELECTRA.
func (c Transformer) electra() []Layer {
	width := or(c.EmbedDim, c.Hidden)
	layers := []Layer{Named{"embeddings", c.bertEmbeddings(width)}}
	if width != c.Hidden {
		layers = append(layers, Named{"embeddings_project", Linear{In: width, Out: c.Hidden}})
	}
	layers = append(layers, Named{"encoder", Sequential{Named{"layer", Repeat{N: c.Blocks, Layer: c.bertBlock()}}}})
	switch {
	case c.Classes != 0:
		return append(layers, c.firstClassifier(GELU{}))
	case c.Detects:
		return append(layers, Named{"discriminator_predictions", Sequential{
			Named{"dense", Linear{In: c.Hidden, Out: c.Hidden}},
			inline{c.Activation.layer(UseGELU)},
			Named{"dense_prediction", Linear{In: c.Hidden, Out: 1}},
		}})
	case c.MaskedLM:
		head := Linear{In: width, Out: c.Vocab, Split: ByColumns}
		if c.Tied {
			head.Tied = ".embeddings.word_embeddings.weight"
		}
		return append(layers, Named{"generator_predictions", Sequential{
			Named{"dense", Linear{In: c.Hidden, Out: width}},
			inline{GELU{}},
			Named{"LayerNorm", LayerNorm{Size: width}},
		}}, Named{"generator_lm_head", head})
	}
	return layers
}
