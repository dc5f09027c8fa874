package family

import (
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// First takes the first token of each sequence, as a view.
type First struct{}

func (First) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, View: true})
}

// stack is a list of blocks, of which many are alike.
type stack struct {
	layers []tape.Layer
	which  []uint8                                                  // for each block, its index in layers
	after  func(t *tape.Tape, block int, x tape.Tensor) tape.Tensor // what the model does with a block's output; nil means nothing
}

func (stack) Kind() string { return "Sequential" }

// Stacked returns n blocks. build makes a block of a kind, once for each kind.
func Stacked(n int, kind func(block int) int, build func(kind, block int) tape.Layer) stack {
	var s stack
	at := map[int]uint8{}
	for i := range max(0, min(n, tape.MaxLayers)) {
		k := kind(i)
		which, ok := at[k]
		if !ok {
			which = uint8(len(s.layers))
			at[k] = which
			s.layers = append(s.layers, build(k, i))
		}
		s.which = append(s.which, which)
	}
	return s
}

func (s stack) Declare(d *tape.Declaration) {
	for i, which := range s.which {
		d.Layer(strconv.Itoa(i), s.layers[which])
	}
}

func (s stack) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	beside := slices.Concat(t.AllBeside(), besideText.Of(t).all)
	for i, which := range s.which {
		x = t.Call(strconv.Itoa(i), s.layers[which], x, beside...)
		if s.after != nil {
			x = s.after(t, i, x)
		}
	}
	return x
}

var besideText tape.Slot[besides]

// besides is what a tower made for all blocks of the text.
type besides struct{ all []tape.Tensor }

// Lasting returns it, as the model holds it while its blocks run.
func (b *besides) Lasting() []tape.Tensor { return b.all }

// softCap is cap * tanh(x / cap), as Gemma 2 bounds its logits.
type softCap struct{}

func (softCap) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = t.Copy(x)
	x = layer.KeepOutput(t, x)
	return t.Copy(x)
}

// scale multiplies by a constant, as Gemma does with its embeddings.
type scale struct{}

func (scale) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "factor", Shape: alloc.Shape{}, DType: alloc.Float32, Buffer: true})
}

func (scale) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Copy(x)
}

// Frequencies holds the buffers of rotary positions, for each kind of layers. Before transformers
// 4.41, each of the Blocks had tables of cosines and sines for Context positions, and some models a
// mask of that size.
type Frequencies struct {
	N, Kinds        int
	Blocks, Context int
	Mask            bool
}

func (Frequencies) Kind() string { return "RotaryEmbedding" }

func (l Frequencies) Declare(d *tape.Declaration) {
	names := []string{"inv_freq", "original_inv_freq"}
	if l.Kinds == 2 {
		names = []string{"full_attention_inv_freq", "full_attention_original_inv_freq", "sliding_attention_inv_freq", "sliding_attention_original_inv_freq"}
	}
	for _, name := range names {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{l.N}, DType: alloc.Float32, Buffer: true})
	}
	if !rotatesByTables(d.Cfg) || l.Context == 0 {
		return
	}
	if l.Blocks > 0 && l.N > 0 {
		d.Add(tape.Param{Name: "cos_sin_cached", Shape: alloc.Shape{2, l.Blocks, l.Context, 2 * l.N}, Buffer: true})
	}
	if l.Mask && masksContext(d.Cfg) {
		d.Add(tape.Param{Name: "causal_mask", Shape: alloc.Shape{l.Context, l.Context}, DType: alloc.Bool, Buffer: true})
	}
}

func (Frequencies) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// rotatesByTables reports whether each block has rotary tables for all positions, as releases
// before 4.41 did (modeling_llama.py, LlamaRotaryEmbedding), and some families for longer.
// Recordings of April 2024 show such tables in Llama, Mistral and Phi (docs/estimate-cases.csv).
func rotatesByTables(c *setting.Config) bool { return c.Libraries.Transformers.Before(4, 41) }

// masksContext reports whether Llama and Gemma have a mask for all positions, as in 4.38 and 4.39
// (modeling_llama.py, causal_mask).
func masksContext(c *setting.Config) bool {
	return c.Libraries.Transformers.Before(4, 40) && !c.Libraries.Transformers.Before(4, 38)
}

// Constants are buffers that layers read, such as masks and tables.
type Constants []tape.Param

// Kind is shown in reports.
func (Constants) Kind() string { return "Buffers" }

// Declare declares the buffers.
func (l Constants) Declare(d *tape.Declaration) {
	for _, p := range l {
		p.Buffer = true
		d.Add(p)
	}
}

// Forward returns its input.
func (Constants) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// Positions adds a learned vector for each position, like an embedding of 0, 1, 2 and so on. The
// position numbers are kept.
type Positions struct {
	Num, Dim int
	Buffered bool // the position numbers are a buffer of the model, as in BERT
	Padding  int  // positions at the beginning that no token uses
	Each     bool // each sequence has its own position numbers, as in OPT
}

func (Positions) Kind() string { return "Embedding" }

func (l Positions) Declare(d *tape.Declaration) {
	layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d)
	if l.Buffered {
		d.Add(tape.Param{Name: "position_ids", Shape: alloc.Shape{1, l.Num}, DType: alloc.Int64, Buffer: true})
	}
}

func (l Positions) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	length := x.Shape[1]
	if most := l.Num - l.Padding; length > most {
		t.Failf("input %v is longer than the model's %d positions", x.Shape, most)
	}
	rows := 1
	if l.Each {
		rows = x.Shape[0]
	}
	numbers := t.Const(alloc.Int64, rows, length)
	look := tape.Op{In: []tape.Tensor{numbers}, Shape: alloc.Shape{rows, length, l.Dim}, DType: t.Activation(), Params: true}
	if !l.Buffered {
		look.Keep = look.In
	}
	vectors := t.Op(look)
	t.Show(vectors.Shape)
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// WithDropout calls a layer and then a dropout, which counts as a part of the layer.
type WithDropout struct {
	Name    string
	Layer   tape.Layer
	Dropout tape.Layer
}

// Kind returns the layer's own kind.
func (w WithDropout) Kind() string { return tape.KindOf(w.Layer) }

func (w WithDropout) Declare(d *tape.Declaration) {
	d.Declare(w.Layer)
	d.Layer(w.Name, w.Dropout)
}

func (w WithDropout) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = w.Layer.Forward(t, x)
	return t.Call(w.Name, w.Dropout, x)
}

// Held is a layer whose parameters exist but which does not run: it returns its input.
type Held struct {
	tape.Layer
	Tower bool // it would run through images or sound, if there were any
}

func (Held) Kind() string { return "Held" }

// Declare declares what the layer has.
func (h Held) Declare(d *tape.Declaration) { d.Declare(h.Layer) }

// Forward returns x. The row has the parameters of all parts.
func (h Held) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if row := &t.Rows[t.Row]; row.Owner >= 0 {
		i := row.Owner + 1
		for ; i < len(t.Decl.Modules) && t.Decl.Modules[i].Depth > row.Depth; i++ {
			row.Params = setting.AddSat(row.Params, t.Decl.Modules[i].Params)
		}
		tape.Rest(t, row.Owner, i)
	}
	if h.Tower {
		layer.Ran.Of(t).Towers = true
	}
	return x
}

// FlatPatches turns (batch, channels, height, width) into (batch, positions, channels), as a view.
type FlatPatches struct{}

func (FlatPatches) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2] * x.Shape[3], x.Shape[1]}, View: true})
}
