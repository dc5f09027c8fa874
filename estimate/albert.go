package estimate

// albert builds ALBERT, whose blocks share one set of parameters.
func (c Transformer) albert() []Layer {
	width := or(c.EmbedDim, c.Hidden)
	layers := []Layer{
		Named{"embeddings", c.bertEmbeddings(width)},
		Named{"encoder", Sequential{
			Named{"embedding_hidden_mapping_in", Linear{In: width, Out: c.Hidden}},
			Named{"albert_layer_groups.0.albert_layers", Repeat{N: c.Blocks, Layer: Share(c.albertBlock())}},
		}},
	}
	if !c.NoHead {
		layers = append(layers, first{}, Named{"pooler", Linear{In: c.Hidden, Out: c.Hidden}}, Named{"pooler_activation", Tanh{}})
	}
	switch {
	case c.MaskedLM:
		decoder := Linear{In: width, Out: c.Vocab, Split: ByColumns}
		if c.Tied {
			decoder.Tied = "..embeddings.word_embeddings.weight"
		}
		return append(layers, Named{"predictions", Sequential{
			Named{"dense", Linear{In: c.Hidden, Out: width}},
			Named{"activation", c.Activation.layer(UseNewGELU)},
			Named{"LayerNorm", LayerNorm{Size: width}},
			Named{"decoder", decoder},
		}})
	case c.Classes != 0:
		return append(layers, Named{"dropout", c.headDropout()}, Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// albertBlock normalises after each part, and drops what attention makes alone.
func (c Transformer) albertBlock() Layer {
	return Sequential{
		Named{"attention", Sequential{
			residual(inline{Attention{
				Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
				names: &attentionNames{q: "query", k: "key", v: "value", out: "dense"},
			}}, Named{"output_dropout", c.dropout()}),
			Named{"LayerNorm", LayerNorm{Size: c.Hidden}},
		}},
		residual(
			Named{"ffn", Linear{In: c.Hidden, Out: c.FFN, Split: ByColumns}},
			Named{"activation", c.Activation.layer(UseNewGELU)},
			Named{"ffn_output", Linear{In: c.FFN, Out: c.Hidden, Split: ByRows}},
		),
		Named{"full_layer_layer_norm", LayerNorm{Size: c.Hidden}},
	}
}
