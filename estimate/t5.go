package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

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
		Named{"block", stacked(c.Blocks, func(block int) int { return min(block, 1) }, func(kind, _ int) Layer {
			return c.t5Block(decoder, kind == 0)
		})},
		Named{"final_layer_norm", RMSNorm{Size: c.Hidden, Unfused: true, mixed: true}},
		inline{c.dropout()},
	}
}

// t5Block is a block; the first of a stack has the table of biases, which all use.
func (c Transformer) t5Block(decoder, first bool) Layer {
	part := func(name string, l Layer) Layer {
		return Sequential{residual(Named{"layer_norm", RMSNorm{Size: c.Hidden, Unfused: true, mixed: true}}, Named{name, l}, Named{"dropout", c.dropout()})}
	}
	attention := Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Plain: c.Plain, Dropout: c.Dropout,
		names: &attentionNames{q: "q", k: "k", v: "v", out: "o"}, distance: &distance{causal: decoder},
	}
	self, cross := attention, attention
	if first {
		self.distance = &distance{buckets: c.Buckets, causal: decoder}
	}
	cross.cross, cross.distance = true, &distance{none: true}
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

// distance is how T5 adds biases to the scores, by the distance of key and query.
type distance struct {
	buckets int  // of the table, 0 where another layer has it
	causal  bool // later keys are left out, by a mask that is kept
	none    bool // there are no biases: zeros are added
}

// table is the embedding of the distances.
func (l distance) table(heads int) Embedding { return Embedding{Num: l.buckets, Dim: heads} }

// biases are what is added to the scores of so many queries and keys.
func (l distance) biases(t *Tape, heads, length, keys int) (Tensor, error) {
	shape := alloc.Shape{1, heads, length, keys}
	if l.none {
		return t.Const(t.Activation(), shape...)
	}
	if l.buckets > 0 {
		numbers, err := t.Const(alloc.Int64, length, keys)
		if err != nil {
			return Tensor{}, err
		}
		found, err := t.Call("relative_attention_bias", l.table(heads), numbers)
		if err == nil {
			t.biases, err = t.Op(Op{In: []Tensor{found}, Shape: shape, View: true})
		}
		if err != nil {
			return Tensor{}, err
		}
	}
	if !t.biases.Shape.Equal(shape) {
		return Tensor{}, t.Errorf("the scores of %d queries and %d keys have no biases: an earlier block must make them", length, keys)
	}
	if !l.causal {
		return t.biases, nil
	}
	return t.Op(Op{In: []Tensor{t.biases}, Shape: shape, KeepOwn: []Own{{alloc.Shape{1, 1, length, keys}, alloc.Bool}}})
}
