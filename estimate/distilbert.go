package estimate

func (c Transformer) distilBERT() []Layer {
	layers := []Layer{
		Named{"embeddings", Sequential{
			Named{"word_embeddings", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
			Named{"position_embeddings", positions{Num: c.Positions, Dim: c.Hidden, buffered: true}},
			Named{"LayerNorm", LayerNorm{Size: c.Hidden}},
			Named{"dropout", c.dropout()},
		}},
		Named{"transformer", Sequential{Named{"layer", Repeat{N: c.Blocks, Layer: c.distilBlock()}}}},
	}
	switch {
	case c.MaskedLM:
		decoder := Linear{In: c.Hidden, Out: c.Vocab, Split: ByColumns}
		if c.Tied {
			decoder.Tied = "embeddings.word_embeddings.weight"
		}
		layers = append(layers,
			Named{"vocab_transform", Linear{In: c.Hidden, Out: c.Hidden}},
			Named{"activation", c.Activation.layer(UseGELU)},
			Named{"vocab_layer_norm", LayerNorm{Size: c.Hidden}},
			Named{"vocab_projector", decoder})
	case c.Classes != 0:
		layers = append(layers,
			first{},
			Named{"pre_classifier", Linear{In: c.Hidden, Out: c.Hidden}},
			Named{"activation", ReLU{}},
			Named{"dropout", c.headDropout()},
			Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// headDropout is the dropout before a classifier.
func (c Transformer) headDropout() Layer {
	if c.HeadDropout == 0 {
		return Identity{}
	}
	return Dropout{P: c.HeadDropout}
}

// distilBlock normalises after each part, and drops what the MLP makes alone.
func (c Transformer) distilBlock() Layer {
	return Sequential{
		residual(Named{"attention", Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
			names: &attentionNames{q: "q_lin", k: "k_lin", v: "v_lin", out: "out_lin"},
		}}),
		Named{"sa_layer_norm", LayerNorm{Size: c.Hidden}},
		residual(Named{"ffn", withDropout{"dropout", MLP{
			Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, names: &[3]string{"lin1", "activation", "lin2"},
		}, c.dropout()}}),
		Named{"output_layer_norm", LayerNorm{Size: c.Hidden}},
	}
}
