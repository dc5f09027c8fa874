package estimate

// t5 builds T5: an encoder and a decoder whose scores have learned biases by distance.
func (c Transformer) t5() []Layer {
	embed := Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	layers := []Layer{encoderDecoder{
		encoder: c.t5Stack(embed, false),
		decoder: c.half().t5Stack(tiedEmbedding{embed, "encoder.embed_tokens.weight"}, true),
	}}
	layers[0] = inline{layers[0]}
	if c.NoHead {
		return layers
	}
	head := Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: ByColumns}
	if c.Tied {
		layers = append(layers, inline{multiple{}})
		head.Tied = "encoder.embed_tokens.weight"
	}
	return append(layers, Named{"lm_head", head})
}

func (c Transformer) t5Stack(embed Layer, decoder bool) Layer {
	return Sequential{
		Named{"embed_tokens", embed},
		Named{"dropout", c.dropout()},
		Named{"block", Repeat{N: c.Blocks, Layer: c.t5Block(decoder)}},
		Named{"final_layer_norm", RMSNorm{Size: c.Hidden, Unfused: true, mixed: true}},
		inline{c.dropout()},
	}
}

// t5Block is a block; all blocks of a stack have the same biases.
func (c Transformer) t5Block(decoder bool) Layer {
	part := func(name string, l Layer) Layer {
		return Sequential{residual(Named{"layer_norm", RMSNorm{Size: c.Hidden, Unfused: true, mixed: true}}, Named{name, l}, Named{"dropout", c.dropout()})}
	}
	attention := Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Plain: c.Plain, Dropout: c.Dropout,
		names: &attentionNames{q: "q", k: "k", v: "v", out: "o"},
	}
	self, cross := attention, attention
	self.Bias = &RelativeBias{Buckets: c.Buckets, Causal: decoder}
	cross.Cross, cross.zeros = true, true
	parts := Sequential{part("SelfAttention", self)}
	if decoder {
		parts = append(parts, part("EncDecAttention", cross))
	}
	return decoderBlock{Sequential{Named{"layer", append(parts, part("DenseReluDense", c.t5MLP()))}}}
}

func (c Transformer) t5MLP() Layer {
	in := Linear{In: c.Hidden, Out: c.FFN, NoBias: true, Split: ByColumns}
	out := Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: ByRows}
	if c.GatedFFN {
		return Sequential{
			inline{gate{in, c.Activation.layer(UseNewGELU)}},
			Named{"dropout", c.dropout()},
			Named{"wo", out},
		}
	}
	return Sequential{
		Named{"wi", in},
		Named{"act", c.Activation.layer(UseReLU)},
		Named{"dropout", c.dropout()},
		Named{"wo", out},
	}
}

// gate is act(wi_0(x)) * wi_1(x).
type gate struct{ in, act Layer }

// Declare implements Layer.
func (l gate) Declare(d *Declaration) {
	d.Layer("wi_0", l.in)
	d.Layer("act", l.act)
	d.Layer("wi_1", l.in)
}

// Forward implements Layer.
func (l gate) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := t.Call("wi_0", l.in, x)
	if err == nil {
		y, err = t.Call("act", l.act, y)
	}
	if err == nil {
		x, err = t.Call("wi_1", l.in, x)
	}
	if err != nil {
		return Tensor{}, err
	}
	return mul(t, y, x)
}
