package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

func (c Transformer) gpt2() []tape.Layer {
	layers := []tape.Layer{tape.Named{Name: "transformer", Layer: tape.Sequential{
		tape.Named{Name: "wte", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		tape.Named{Name: "wpe", Layer: positions{Num: c.Positions, Dim: c.Hidden}},
		tape.Named{Name: "drop", Layer: c.dropout()},
		tape.Named{Name: "h", Layer: tape.Repeat{N: c.Blocks, Layer: c.gpt2Block()}},
		tape.Named{Name: "ln_f", Layer: layer.LayerNorm{Size: c.Hidden}},
	}}}
	if !c.NoHead {
		head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns}
		if c.Tied {
			head.Tied = ".transformer.wte.weight"
		}
		layers = append(layers, tape.Named{Name: "lm_head", Layer: head})
	}
	return layers
}

func (c Transformer) gpt2Block() tape.Layer {
	return tape.Sequential{
		tape.Skip(
			tape.Named{Name: "ln_1", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "attn", Layer: withDropout{"resid_dropout", layer.Attention{
				Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, Packed: true, Plain: c.Plain, Dropout: c.Dropout, Returns: true, Always: c.KVHeads == 1, // GPTBigCode leaves use_cache as it is
				Names: &layer.AttentionNames{Packed: "c_attn", Out: "c_proj"},
			}, c.dropout()}},
		),
		tape.Skip(
			tape.Named{Name: "ln_2", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "mlp", Layer: withDropout{"dropout", layer.MLP{
				Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU), Names: &[3]string{"c_fc", "act", "c_proj"},
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

func (l positions) Declare(d *tape.Declaration) { layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

func (l positions) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	length := x.Shape[1]
	if most := l.Num - l.padding; length > most {
		return tape.Tensor{}, t.Errorf("input %v is longer than the model's %d positions", x.Shape, most)
	}
	rows := 1
	if l.each {
		rows = x.Shape[0]
	}
	numbers, err := t.Const(alloc.Int64, rows, length)
	if err != nil {
		return tape.Tensor{}, err
	}
	look := tape.Op{In: []tape.Tensor{numbers}, Shape: alloc.Shape{rows, length, l.Dim}, DType: t.Activation(), Params: true}
	if !l.buffered {
		look.Keep = look.In
	}
	vectors, err := t.Op(look)
	if err != nil {
		return tape.Tensor{}, err
	}
	t.Show(vectors.Shape)
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// withDropout calls a layer and then dropout as one of its parts.
type withDropout struct {
	name    string
	layer   tape.Layer
	dropout tape.Layer
}

// Kind names the row as that of the layer.
func (w withDropout) Kind() string { return tape.KindOf(w.layer) }

func (w withDropout) Declare(d *tape.Declaration) {
	d.Declare(w.layer)
	d.Layer(w.name, w.dropout)
}

func (w withDropout) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	x, err := w.layer.Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call(w.name, w.dropout, x)
}
