package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

func (c Transformer) gpt2() []Layer {
	layers := []Layer{Named{"transformer", Sequential{
		Named{"wte", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		Named{"wpe", positions{Num: c.Positions, Dim: c.Hidden}},
		Named{"drop", c.dropout()},
		Named{"h", Repeat{N: c.Blocks, Layer: c.gpt2Block()}},
		Named{"ln_f", LayerNorm{Size: c.Hidden}},
	}}}
	if !c.NoHead {
		head := Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: ByColumns}
		if c.Tied {
			head.Tied = ".transformer.wte.weight"
		}
		layers = append(layers, Named{"lm_head", head})
	}
	return layers
}

func (c Transformer) gpt2Block() Layer {
	return Sequential{
		residual(
			Named{"ln_1", LayerNorm{Size: c.Hidden}},
			Named{"attn", withDropout{"resid_dropout", Attention{
				Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, Packed: true, Plain: c.Plain, Dropout: c.Dropout, returns: true, always: c.KVHeads == 1, // GPTBigCode leaves use_cache as it is
				names: &attentionNames{packed: "c_attn", out: "c_proj"},
			}, c.dropout()}},
		),
		residual(
			Named{"ln_2", LayerNorm{Size: c.Hidden}},
			Named{"mlp", withDropout{"dropout", MLP{
				Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseNewGELU), names: &[3]string{"c_fc", "act", "c_proj"},
			}, c.dropout()}},
		),
	}
}

// positions adds a learned vector for each place of the input, as an
// embedding of 0, 1, 2... does; the numbers are kept.
type positions struct {
	Num, Dim int
	buffered bool // the numbers are a buffer of the model, as in BERT
	padding  int  // of the Num, those before the first
	each     bool // the numbers are those of each sequence, as in OPT
}

// Kind names the row.
func (positions) Kind() string { return "Embedding" }

// Declare implements Layer.
func (l positions) Declare(d *Declaration) { Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

// Forward implements Layer.
func (l positions) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	length := x.Shape[1]
	if most := l.Num - l.padding; length > most {
		return Tensor{}, t.Errorf("input %v is longer than the model's %d positions", x.Shape, most)
	}
	rows := 1
	if l.each {
		rows = x.Shape[0]
	}
	numbers, err := t.Const(alloc.Int64, rows, length)
	if err != nil {
		return Tensor{}, err
	}
	look := Op{In: []Tensor{numbers}, Shape: alloc.Shape{rows, length, l.Dim}, DType: t.Activation(), Params: true}
	if !l.buffered {
		look.Keep = look.In
	}
	vectors, err := t.Op(look)
	if err != nil {
		return Tensor{}, err
	}
	t.rowOutput = vectors.Shape
	return t.Op(Op{In: []Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// withDropout calls a layer and then dropout as one of its parts.
type withDropout struct {
	name    string
	layer   Layer
	dropout Layer
}

// Kind names the row as that of the layer.
func (w withDropout) Kind() string { return kindOf(w.layer) }

// Declare implements Layer.
func (w withDropout) Declare(d *Declaration) {
	w.layer.Declare(d)
	d.Layer(w.name, w.dropout)
}

// Forward implements Layer.
func (w withDropout) Forward(t *Tape, x Tensor) (Tensor, error) {
	x, err := w.layer.Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return t.Call(w.name, w.dropout, x)
}
