package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// WindowAttention is Swin's attention within windows of an image, over (batch, height, width, hidden),
// with learned biases by the distance of two pixels (arXiv:2103.14030, section 3.2). It keeps what
// Attention keeps of each window. The image is padded to whole windows.
//
// Packed and Plain together are torchvision's ShiftedWindowAttention, neither is transformers'
// SwinAttention; the parameters have their names.
type WindowAttention struct {
	Hidden, Heads int
	Window        int  // side of a window in pixels
	Shifted       bool // windows are moved by half of one, where the image has more than one
	Packed        bool // one projection for queries, keys and values
	Plain         bool // hold the scores
}

// maxWindow bounds the side, so that the number of pairs of pixels fits into 64 bits.
const maxWindow = 1 << 14

// linear is a projection to so many times the width.
func (l WindowAttention) linear(times int) Linear {
	return Linear{In: l.Hidden, Out: times * l.Hidden}
}

// parts are the projections, and the name of that of the output and of the table.
func (l WindowAttention) parts() (parts Sequential, out, table string) {
	if l.Packed {
		return Sequential{As("qkv", l.linear(3)), As("proj", l.linear(1))}, "proj", "relative_position_bias_table"
	}
	one := l.linear(1)
	return Sequential{As("q_proj", one), As("k_proj", one), As("v_proj", one), As("o_proj", one)}, "o_proj", "relative_position_bias.relative_position_bias_table"
}

// Declare implements Layer.
func (l WindowAttention) Declare(d *Declaration) {
	if !d.wantAll(setting{"Hidden", l.Hidden, 1}, setting{"Heads", l.Heads, 1}, setting{"Window", l.Window, 1}) {
		return
	}
	switch {
	case l.Window > maxWindow:
		d.Errorf("Window is %d: want at most %d", l.Window, maxWindow)
	case l.Hidden > maxField/3:
		d.Errorf("Hidden is %d: want at most %d", l.Hidden, maxField/3)
	case l.Hidden%l.Heads != 0:
		d.Errorf("Hidden %d does not divide into %d Heads", l.Hidden, l.Heads)
	}
	parts, _, table := l.parts()
	parts.Declare(d)
	distances, tokens := 2*l.Window-1, l.Window*l.Window
	d.Param(table, distances*distances, l.Heads)
	d.Add(Param{Name: "relative_position_index", Shape: alloc.Shape{tokens, tokens}, DType: alloc.Int64, Buffer: true})
}

// Forward implements Layer.
func (l WindowAttention) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, height, width, hidden)"); err != nil {
		return Tensor{}, err
	}
	if err := t.width(x, 3, l.Hidden, "channels"); err != nil {
		return Tensor{}, err
	}
	if t.computes() != alloc.Float32 {
		t.unmeasured |= lowWindows
	}
	parts, out, _ := l.parts()
	f := &Flow{t: t, parts: parts}
	high, wide := l.windows(x.Shape[1]), l.windows(x.Shape[2])
	windows, tokens := x.Shape[0]*high*wide, l.Window*l.Window
	padded := alloc.Shape{x.Shape[0], high * l.Window, wide * l.Window, l.Hidden}
	shifts := l.Shifted && max(high, wide) > 1

	y := f.Op(Op{In: []Tensor{x}, Shape: padded})
	if shifts {
		y = f.Copy(y)
	}
	q, k, v := l.project(f, f.View(f.Copy(y), windows, tokens, l.Hidden))
	y = l.attend(f, q, k, v, shifts)
	y = f.Copy(f.View(f.Call(out, y), padded...))
	if shifts {
		y = f.Copy(y)
	}
	if !padded.Equal(x.Shape) {
		y = f.Op(Op{In: []Tensor{y}, Shape: x.Shape})
	}
	return y, f.err
}

// windows is how many windows there are along a side.
func (l WindowAttention) windows(side int) int { return (side-1)/max(1, l.Window) + 1 }

// size is that of a head.
func (l WindowAttention) size() int { return l.Hidden / max(1, l.Heads) }

// project makes queries, keys and values of windows.
func (l WindowAttention) project(f *Flow, x Tensor) (q, k, v Tensor) {
	if !l.Packed {
		return f.Call("q_proj", x), f.Call("k_proj", x), f.Call("v_proj", x)
	}
	all := f.Call("qkv", x)
	one := func() Tensor { return f.Split(all, 2, l.Hidden)[0] } // torchvision takes qkv[0], qkv[1] and qkv[2]
	return one(), one(), one()
}

// attend adds the biases to the scores, and the mask of shifted windows.
func (l WindowAttention) attend(f *Flow, q, k, v Tensor, shifts bool) Tensor {
	windows, tokens := q.Dim(0), q.Dim(1)
	table := alloc.Shape{1, l.Heads, tokens, tokens}
	index := f.Const(alloc.Bool, 1) // stands for the buffer
	bias := f.Op(Op{In: []Tensor{index}, Shape: table, DType: f.t.Activation(), Params: true})
	bias = f.Copy(bias) // heads first
	if l.Plain {
		return l.scores(f, q, k, v, bias, shifts)
	}
	if shifts {
		bias = f.Op(Op{In: []Tensor{bias}, Shape: alloc.Shape{windows, l.Heads, tokens, tokens}})
	}
	return f.do(q.Shape, func() (Tensor, error) {
		return sdpa{heads: l.Heads, size: l.size(), masks: []Tensor{bias}}.attend(f.t, q, k, v)
	})
}

// scores is attention in torchvision's operations.
func (l WindowAttention) scores(f *Flow, q, k, v, bias Tensor, shifts bool) Tensor {
	windows, tokens := q.Dim(0), q.Dim(1)
	q = f.Copy(f.Scale(q))
	s := f.Add(f.MatMul(q, f.Copy(k), l.size(), windows, l.Heads, tokens, tokens), bias)
	if shifts {
		s = f.Scale(s) // and the mask
	}
	s = f.Apply(Softmax{}, s)
	return f.Copy(f.MatMul(s, f.Copy(v), tokens, windows, tokens, l.Hidden))
}
