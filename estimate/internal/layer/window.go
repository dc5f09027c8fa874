package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// window is what convolutions and pooling slide over their input.
type window struct {
	dims                              int
	kernel, stride, padding, dilation [3]int
}

// cube returns a window with the same settings in each dimension. A stride or dilation of 0 means
// 1.
func cube(dims, kernel, stride, padding, dilation int) window {
	w := window{dims: dims}
	for i := range dims {
		w.kernel[i], w.stride[i], w.padding[i], w.dilation[i] = kernel, setting.Or(stride, 1), padding, setting.Or(dilation, 1)
	}
	return w
}

// set replaces the settings of single dimensions that are not 0.
func (w *window) set(kernel, stride, padding [3]int) {
	for i := range w.dims {
		w.kernel[i] = setting.Or(kernel[i], w.kernel[i])
		w.stride[i] = setting.Or(stride[i], w.stride[i])
		w.padding[i] = setting.Or(padding[i], w.padding[i])
	}
}

func (w window) check(d *tape.Declaration) bool {
	for i := range w.dims {
		d.Want("Kernel", w.kernel[i], 1)
		d.Want("Stride", w.stride[i], 1)
		d.Want("Padding", w.padding[i], 0)
		d.Want("Dilation", w.dilation[i], 1)
	}
	return true
}

// outputs returns the number of output positions along dimension i of the input, as
// torch.nn.Conv2d and MaxPool2d document it, or 0 if it does not fit. With ceil, a last position may
// reach beyond the end if it begins within the input.
func (w window) outputs(i, length int, ceil bool) int {
	room := length + 2*w.padding[i] - w.dilation[i]*(w.kernel[i]-1) - 1
	if room < 0 {
		return 0
	}
	n := room/w.stride[i] + 1
	if ceil && room%w.stride[i] != 0 && n*w.stride[i] < length+w.padding[i] {
		n++
	}
	return n
}

// grown returns the length of a transposed convolution's output.
func (w window) grown(i, length int) int {
	if length > setting.MaxField {
		return 0
	}
	return (length-1)*w.stride[i] - 2*w.padding[i] + w.dilation[i]*(w.kernel[i]-1) + 1
}

// WindowAttention is Swin's attention within windows of an image, over (batch, height, width,
// hidden), with learned biases by the distance between pixels (arXiv:2103.14030, section 3.2). For
// each window it keeps what Attention keeps. The image is padded to whole windows.
//
// Packed and Plain together give torchvision's ShiftedWindowAttention, without both it is
// transformers' SwinAttention. The parameters have the names of these.
type WindowAttention struct {
	Hidden, Heads int
	Window        int  // side of a window in pixels
	Shifted       bool // windows are moved by half their side, if the image has more than one
	Packed        bool // one projection for queries, keys and values
	Plain         bool // the scores are held in memory
}

// maxWindow bounds the side, so that the number of pairs of pixels fits into 64 bits.
const maxWindow = 1 << 14

// linear returns a projection to a multiple of the width.
func (l WindowAttention) linear(times int) Linear {
	return Linear{In: l.Hidden, Out: times * l.Hidden}
}

// parts returns the projections, and the names of the output projection and of the table.
func (l WindowAttention) parts() (parts tape.Sequential, out, table string) {
	if l.Packed {
		return tape.Sequential{tape.As("qkv", l.linear(3)), tape.As("proj", l.linear(1))}, "proj", "relative_position_bias_table"
	}
	one := l.linear(1)
	return tape.Sequential{tape.As("q_proj", one), tape.As("k_proj", one), tape.As("v_proj", one), tape.As("o_proj", one)}, "o_proj", "relative_position_bias.relative_position_bias_table"
}

func (l WindowAttention) Declare(d *tape.Declaration) {
	d.Want("Hidden", l.Hidden, 1)
	d.Want("Heads", l.Heads, 1)
	d.Want("Window", l.Window, 1)
	switch {
	case l.Window > maxWindow:
		d.Failf("Window is %d: want at most %d", l.Window, maxWindow)
	case l.Hidden > setting.MaxField/3:
		d.Failf("Hidden is %d: want at most %d", l.Hidden, setting.MaxField/3)
	case l.Hidden%l.Heads != 0:
		d.Failf("Hidden %d does not divide into %d Heads", l.Hidden, l.Heads)
	}
	parts, _, table := l.parts()
	parts.Declare(d)
	distances, tokens := 2*l.Window-1, l.Window*l.Window
	d.Param(table, distances*distances, l.Heads)
	d.Add(tape.Param{Name: "relative_position_index", Shape: alloc.Shape{tokens, tokens}, DType: alloc.Int64, Buffer: true})
}

func (l WindowAttention) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, height, width, hidden)")
	t.Width(x, 3, l.Hidden, "channels")
	if t.Computes() != alloc.Float32 {
		Ran.Of(t).Unmeasured |= LowWindows
	}
	parts, out, _ := l.parts()
	f := &tape.Flow{Tape: t, Parts: parts}
	high, wide := l.windows(x.Shape[1]), l.windows(x.Shape[2])
	windows, tokens := x.Shape[0]*high*wide, l.Window*l.Window
	padded := alloc.Shape{x.Shape[0], high * l.Window, wide * l.Window, l.Hidden}
	shifts := l.Shifted && max(high, wide) > 1

	y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: padded})
	if shifts {
		y = f.Copy(y)
	}
	q, k, v := l.project(f, f.View(f.Copy(y), windows, tokens, l.Hidden))
	y = l.attend(t, q, k, v, shifts)
	y = f.Copy(f.View(f.Call(out, y), padded...))
	if shifts {
		y = f.Copy(y)
	}
	if !slices.Equal(padded, x.Shape) {
		y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape})
	}
	return y
}

// windows returns the number of windows along a side.
func (l WindowAttention) windows(side int) int { return (side-1)/max(1, l.Window) + 1 }

// size is that of a head.
func (l WindowAttention) size() int { return l.Hidden / max(1, l.Heads) }

// project makes queries, keys and values of the windows.
func (l WindowAttention) project(f *tape.Flow, x tape.Tensor) (q, k, v tape.Tensor) {
	if !l.Packed {
		return f.Call("q_proj", x), f.Call("k_proj", x), f.Call("v_proj", x)
	}
	all := f.Call("qkv", x)
	one := func() tape.Tensor { return f.Split(all, 2, l.Hidden)[0] } // torchvision takes qkv[0], qkv[1] and qkv[2]
	return one(), one(), one()
}

// attend adds the biases to the scores, and the mask of shifted windows.
func (l WindowAttention) attend(t *tape.Tape, q, k, v tape.Tensor, shifts bool) tape.Tensor {
	windows, tokens := q.Dim(0), q.Dim(1)
	table := alloc.Shape{1, l.Heads, tokens, tokens}
	index := t.Const(alloc.Bool, 1) // stands for the buffer of indices
	bias := t.Op(tape.Op{In: []tape.Tensor{index}, Shape: table, DType: t.Activation(), Params: true})
	bias = t.Copy(bias) // heads first
	if l.Plain {
		return l.scores(t, q, k, v, bias, shifts)
	}
	if shifts {
		bias = t.Op(tape.Op{In: []tape.Tensor{bias}, Shape: alloc.Shape{windows, l.Heads, tokens, tokens}})
	}
	return Sdpa{Heads: l.Heads, Size: l.size(), masks: []tape.Tensor{bias}}.Attend(t, q, k, v)
}

// scores records attention in torchvision's operations.
func (l WindowAttention) scores(t *tape.Tape, q, k, v, bias tape.Tensor, shifts bool) tape.Tensor {
	windows, tokens := q.Dim(0), q.Dim(1)
	q = t.Copy(t.Scale(q))
	s := t.Add(t.MatMul(q, t.Copy(k), l.size(), windows, l.Heads, tokens, tokens), bias)
	if shifts {
		s = t.Scale(s) // and the mask
	}
	s = t.Apply(Softmax{}, s)
	return t.Copy(t.MatMul(s, t.Copy(v), tokens, windows, tokens, l.Hidden))
}
