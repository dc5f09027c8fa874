package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Stage is a part of a Swin transformer: blocks of the same resolution and width, which are half and
// twice those of the stage before.
type Stage struct{ Blocks, Heads int }

// maxStages bounds the stages, since each has twice the width.
const maxStages = 8

// swin builds Swin: attention within windows of an image, every other block's shifted.
func (c Transformer) swin() []Layer {
	if len(c.Stages) > maxStages {
		return []Layer{wrong("there are more than 8 Stages")}
	}
	side := c.side()
	embed := Sequential{
		Named{"patch_embeddings.projection", Conv2d{In: or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch}},
		inline{flatPatches{}},
		Named{"norm", LayerNorm{Size: c.Hidden}},
		Named{"dropout", c.dropout()},
	}
	var stages Sequential
	width, ffn, first := min(c.Hidden, maxField>>maxStages), min(c.FFN, maxField>>maxStages), true
	for i, s := range c.Stages {
		var blocks Sequential
		for b := range min(s.Blocks, maxLayers) {
			blocks = append(blocks, c.swinBlock(side, width, ffn, s.Heads, b%2 == 1, !first))
			first = false
		}
		stage := Sequential{Named{"blocks", blocks}}
		if i+1 < len(c.Stages) {
			stage = append(stage, Named{"downsample", merging{side, width}})
			side, width, ffn = (side+1)/2, 2*width, 2*ffn
		}
		stages = append(stages, stage)
	}
	body := Named{"swin", Sequential{
		Named{"embeddings", embed},
		Named{"encoder.layers", stages},
		Named{"layernorm", LayerNorm{Size: width}},
		inline{meanPlace{}},
	}}
	if c.Classes == 0 || c.NoHead {
		return []Layer{body}
	}
	return []Layer{body, Named{"classifier", Linear{In: width, Out: c.Classes}}}
}

func (c Transformer) swinBlock(side, width, ffn, heads int, shifted, drops bool) Layer {
	w := swinWindow{side: side, width: width, heads: heads, window: c.Window, shifted: shifted && side > c.Window}
	if side <= c.Window {
		w.table, w.window = c.Window, side
	}
	attention := Sequential{Named{"layernorm_before", LayerNorm{Size: width}}, Named{"attention", w}, inline{c.dropout()}}
	if drops && c.DropPath > 0 {
		attention = append(attention, Named{"drop_path", StochasticDepth{}})
	}
	mlp := MLP{Hidden: width, FFN: ffn, Activation: c.Activation}
	return Sequential{
		residual(attention...),
		residual(Named{"layernorm_after", LayerNorm{Size: width}}, Named{"mlp", mlp}, inline{c.dropout()}),
	}
}

// swinWindow is attention within windows of a square image of places, with learned biases by the
// distance of two places.
type swinWindow struct {
	side, width, heads int
	window, table      int // along a side; table is that of the biases, 0 for the same
	shifted            bool
}

// Kind names the row.
func (swinWindow) Kind() string { return "WindowAttention" }

func (l swinWindow) linear() Linear { return Linear{In: l.width, Out: l.width} }

// Declare implements Layer.
func (l swinWindow) Declare(d *Declaration) {
	if !d.wantAll(setting{"Window", l.window, 1}, setting{"Heads", l.heads, 1}, setting{"the side of the image", l.side, 1}) {
		return
	}
	for _, name := range []string{"q_proj", "k_proj", "v_proj", "o_proj"} {
		d.Layer(name, l.linear())
	}
	n := 2*min(or(l.table, l.window), 1<<14) - 1
	d.Param("relative_position_bias.relative_position_bias_table", n*n, l.heads)
}

// Forward implements Layer.
func (l swinWindow) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, places, hidden)"); err != nil {
		return Tensor{}, err
	}
	if x.Shape[1] != l.side*l.side {
		return Tensor{}, t.Errorf("input %v has not the %d x %d places of the model", x.Shape, l.side, l.side)
	}
	across := (l.side + l.window - 1) / l.window
	n := l.window * l.window
	count := int(min(FLOPs(x.Shape[0], across, across), maxField))
	cut, err := t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{count, n, l.width}})
	if err == nil && l.shifted {
		cut, err = t.Op(Op{In: []Tensor{cut}, Shape: cut.Shape})
	}
	if err != nil {
		return Tensor{}, err
	}
	var qkv [3]Tensor
	for i, name := range []string{"q_proj", "k_proj", "v_proj"} {
		if qkv[i], err = t.Call(name, l.linear(), cut); err != nil {
			return Tensor{}, err
		}
	}
	bias, err := t.Op(Op{In: []Tensor{cut}, Shape: alloc.Shape{1, l.heads, n, n}, Params: true})
	if err == nil && l.shifted {
		bias, err = t.Op(Op{In: []Tensor{bias}, Shape: alloc.Shape{count, l.heads, n, n}})
	}
	if err != nil {
		return Tensor{}, err
	}
	y, err := attend(t, qkv[0], qkv[1], qkv[2], l.heads, l.width/l.heads, false, 0, []Tensor{bias}, nil)
	if err == nil {
		y, err = t.Call("o_proj", l.linear(), y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: x.Shape}) // put together again
}

// merging joins four places to one of twice the width.
type merging struct{ side, width int }

// Kind names the row.
func (merging) Kind() string { return "PatchMerging" }

// Declare implements Layer.
func (l merging) Declare(d *Declaration) {
	d.Layer("norm", LayerNorm{Size: 4 * l.width})
	d.Layer("reduction", Linear{In: 4 * l.width, Out: 2 * l.width, NoBias: true})
}

// Forward implements Layer.
func (l merging) Forward(t *Tape, x Tensor) (Tensor, error) {
	half := (l.side + 1) / 2
	y, err := t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], half * half, 4 * l.width}})
	if err == nil {
		y, err = t.Call("norm", LayerNorm{Size: 4 * l.width}, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("reduction", Linear{In: 4 * l.width, Out: 2 * l.width, NoBias: true}, y)
}

// meanPlace is the mean over the places.
type meanPlace struct{}

// Declare implements Layer.
func (meanPlace) Declare(*Declaration) {}

// Forward implements Layer.
func (meanPlace) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, places, hidden)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}})
}
