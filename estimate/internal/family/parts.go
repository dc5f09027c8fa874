package family

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// First takes the first token of each sequence, as a view.
type First struct{}

func (First) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, View: true})
}

// stack is blocks one after another, of which many are alike.
type stack struct {
	layers []tape.Layer
	which  []uint8 // of the layers, for each block
}

// Kind names the row.
func (stack) Kind() string { return "Sequential" }

// Stacked are so many blocks, of which make makes one of a kind.
func Stacked(n int, kind func(block int) int, make func(kind, block int) tape.Layer) stack {
	var s stack
	at := map[int]uint8{}
	for i := range max(0, min(n, tape.MaxLayers)) {
		k := kind(i)
		which, ok := at[k]
		if !ok {
			which = uint8(len(s.layers))
			at[k] = which
			s.layers = append(s.layers, make(k, i))
		}
		s.which = append(s.which, which)
	}
	return s
}

func (s stack) Declare(d *tape.Declaration) {
	for i, which := range s.which {
		if !d.Layer(strconv.Itoa(i), s.layers[which]) {
			return
		}
	}
}

func (s stack) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	var err error
	for i, which := range s.which {
		if x, err = t.Call(strconv.Itoa(i), s.layers[which], x, t.AllBeside()...); err != nil {
			return tape.Tensor{}, err
		}
	}
	return x, nil
}

// softCap is cap * tanh(x / cap), as Gemma 2 bounds its logits.
type softCap struct{}

func (softCap) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	x, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
	if err == nil {
		x, err = layer.KeepOutput(t, x)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
}

// scale multiplies by a constant, as Gemma does with its embeddings.
type scale struct{}

func (scale) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "factor", Shape: alloc.Shape{}, DType: alloc.Float32, Buffer: true})
}

func (scale) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
}

// Frequencies holds the buffers of the rotary positions, for so many kinds of layers. Each of the Blocks had tables of
// Context positions before transformers 4.41, of cosines and of sines, and some models a mask of them.
type Frequencies struct {
	N, Kinds        int
	Blocks, Context int
	Mask            bool
}

// Kind names the row.
func (Frequencies) Kind() string { return "RotaryEmbedding" }

func (l Frequencies) Declare(d *tape.Declaration) {
	names := []string{"inv_freq", "original_inv_freq"}
	if l.Kinds == 2 {
		names = []string{"full_attention_inv_freq", "full_attention_original_inv_freq", "sliding_attention_inv_freq", "sliding_attention_original_inv_freq"}
	}
	for _, name := range names {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{l.N}, DType: alloc.Float32, Buffer: true})
	}
	if !d.Cfg.RotatesByTables() || l.Context == 0 {
		return
	}
	if l.Blocks > 0 && l.N > 0 {
		d.Add(tape.Param{Name: "cos_sin_cached", Shape: alloc.Shape{2, l.Blocks, l.Context, 2 * l.N}, Buffer: true})
	}
	if l.Mask && d.Cfg.MasksContext() {
		d.Add(tape.Param{Name: "causal_mask", Shape: alloc.Shape{l.Context, l.Context}, DType: alloc.Bool, Buffer: true})
	}
}

func (Frequencies) Forward(_ *tape.Tape, x tape.Tensor) (tape.Tensor, error) { return x, nil }

// Positions adds a learned vector for each place of the input, as an
// embedding of 0, 1, 2... does; the numbers are kept.
type Positions struct {
	Num, Dim int
	Buffered bool // the numbers are a buffer of the model, as in BERT
	Padding  int  // of the Num, those before the first
	Each     bool // the numbers are those of each sequence, as in OPT
}

// Kind names the row.
func (Positions) Kind() string { return "Embedding" }

func (l Positions) Declare(d *tape.Declaration) { layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

func (l Positions) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	length := x.Shape[1]
	if most := l.Num - l.Padding; length > most {
		return tape.Tensor{}, t.Errorf("input %v is longer than the model's %d positions", x.Shape, most)
	}
	rows := 1
	if l.Each {
		rows = x.Shape[0]
	}
	numbers, err := t.Const(alloc.Int64, rows, length)
	if err != nil {
		return tape.Tensor{}, err
	}
	look := tape.Op{In: []tape.Tensor{numbers}, Shape: alloc.Shape{rows, length, l.Dim}, DType: t.Activation(), Params: true}
	if !l.Buffered {
		look.Keep = look.In
	}
	vectors, err := t.Op(look)
	if err != nil {
		return tape.Tensor{}, err
	}
	t.Show(vectors.Shape)
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// WithDropout calls a layer and then dropout as one of its parts.
type WithDropout struct {
	Name    string
	Layer   tape.Layer
	Dropout tape.Layer
}

// Kind names the row as that of the layer.
func (w WithDropout) Kind() string { return tape.KindOf(w.Layer) }

func (w WithDropout) Declare(d *tape.Declaration) {
	d.Declare(w.Layer)
	d.Layer(w.Name, w.Dropout)
}

func (w WithDropout) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	x, err := w.Layer.Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call(w.Name, w.Dropout, x)
}

// Held is a layer whose parameters are there and that passes its input on.
type Held struct{ tape.Layer }

// Kind names the row.
func (Held) Kind() string { return "Held" }

// Declare names what the layer has.
func (h Held) Declare(d *tape.Declaration) { d.Declare(h.Layer) }

// Forward passes x on: the row stands for all parts.
func (Held) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	row := &t.Rows[t.Row]
	for i := row.Owner + 1; row.Owner >= 0 && i < len(t.Decl.Modules) && t.Decl.Modules[i].Depth > row.Depth; i++ {
		row.Params = setting.AddSat(row.Params, t.Decl.Modules[i].Params)
	}
	layer.Ran.Of(t).Held = true
	return x, nil
}

// FlatPatches is (batch, channels, height, width) as (batch, places, channels), a view.
type FlatPatches struct{}

func (FlatPatches) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2] * x.Shape[3], x.Shape[1]}, View: true})
}
