package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// mpNet builds MPNet, a BERT whose scores have learned biases by distance.
func (c Transformer) mpNet() []Layer {
	layers := []Layer{
		Named{"embeddings", Sequential{
			Named{"word_embeddings", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
			Named{"position_embeddings", positions{Num: c.Positions, Dim: c.Hidden, each: true, padding: 2}},
			Named{"position_ids", places{c.Positions}},
			Named{"LayerNorm", LayerNorm{Size: c.Hidden}},
			Named{"dropout", c.dropout()},
		}},
		Named{"encoder", Sequential{
			inline{biasesBefore{c.Buckets, c.Heads}},
			Named{"layer", Repeat{N: c.Blocks, Layer: c.mpNetBlock()}},
		}},
	}
	switch {
	case c.Classes != 0:
		return append(layers, c.firstClassifier(Tanh{}))
	case c.MaskedLM:
		decoder := Linear{In: c.Hidden, Out: c.Vocab, Split: ByColumns}
		if c.Tied {
			decoder.Tied = "..embeddings.word_embeddings.weight"
		}
		return append(layers, Named{"lm_head", Sequential{
			Named{"dense", Linear{In: c.Hidden, Out: c.Hidden}}, inline{GELU{}},
			Named{"layer_norm", LayerNorm{Size: c.Hidden}}, Named{"decoder", decoder},
		}})
	case !c.NoHead:
		layers = append(layers, c.pooler())
	}
	return layers
}

func (c Transformer) mpNetBlock() Layer {
	linear := func(in, out int) Linear { return Linear{In: in, Out: out} }
	norm, drop := LayerNorm{Size: c.Hidden}, c.dropout()
	parts := Sequential{
		As("attention.attn.q", linear(c.Hidden, c.Hidden)), As("attention.attn.k", linear(c.Hidden, c.Hidden)),
		As("attention.attn.v", linear(c.Hidden, c.Hidden)), As("attention.attn.o", linear(c.Hidden, c.Hidden)),
		As("attention.LayerNorm", norm),
		As("intermediate.dense", linear(c.Hidden, c.FFN)), As("output.dense", linear(c.FFN, c.Hidden)), As("output.LayerNorm", norm),
	}
	return Module{Name: "MPNetLayer", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		batch, length := x.Dim(0), x.Dim(1)
		q, k, v := f.Call("attention.attn.q", x), f.Call("attention.attn.k", x), f.Call("attention.attn.v", x)
		s := f.Scale(f.MatMul(q, k, c.headSize(), batch, c.Heads, length, length))
		s = f.Op(Op{In: []Tensor{s, f.t.spread}, Shape: s.Shape, InPlace: true, PassGrad: true})
		s = f.Apply(drop, f.Op(Op{In: []Tensor{s}, Shape: s.Shape, KeepOutput: true}))
		y := f.Copy(f.MatMul(s, v, length, x.Shape...)) // heads and length change places again
		x = f.Call("attention.LayerNorm", f.Add(f.Apply(drop, f.Call("attention.attn.o", y)), x))
		y = f.Apply(c.Activation.layer(UseGELU), f.Call("intermediate.dense", x))
		return f.Call("output.LayerNorm", f.Add(f.Apply(drop, f.Call("output.dense", y)), x))
	}}
}

// places holds the buffer of the numbers of positions.
type places struct{ n int }

// Kind names the row.
func (places) Kind() string { return "Buffers" }

// Declare implements Layer.
func (l places) Declare(d *Declaration) {
	d.Add(Param{Name: "numbers", Shape: alloc.Shape{1, l.n}, DType: alloc.Int64, Buffer: true})
}

// Forward implements Layer.
func (places) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }

// biasesBefore makes the biases of all blocks, once for each sequence.
type biasesBefore struct{ buckets, heads int }

func (l biasesBefore) table() Embedding { return Embedding{Num: l.buckets, Dim: l.heads} }

// Declare implements Layer.
func (l biasesBefore) Declare(d *Declaration) { d.Layer("relative_attention_bias", l.table()) }

// Forward implements Layer.
func (l biasesBefore) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	batch, length := x.Shape[0], x.Shape[1]
	numbers, err := t.Const(alloc.Int64, length, length)
	if err != nil {
		return Tensor{}, err
	}
	found, err := t.Call("relative_attention_bias", l.table(), numbers)
	if err == nil {
		t.spread, err = t.Op(Op{In: []Tensor{found}, Shape: alloc.Shape{batch, l.heads, length, length}})
	}
	return x, err
}
