package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Flatten nn.Flatten

func (l Flatten) Declare(d *tape.Declaration) { d.Want("Start", l.Start, 0) }

func (l Flatten) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	start := setting.Or(l.Start, 1)
	if start >= len(x.Shape) {
		t.Failf("input %v has no dimension %d to flatten from", x.Shape, start)
	}
	return t.View(x, append(x.Shape[:start:start], -1)...)
}

type Reshape nn.Reshape

func (l Reshape) Declare(d *tape.Declaration) {
	unknown := 0
	for _, n := range l {
		if n == -1 {
			unknown++
		} else {
			d.Want("each dimension", n, 1)
		}
	}
	if unknown > 1 {
		d.Failf("dimensions %v: at most one may be -1", []int(l))
	}
}

func (l Reshape) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) == 0 {
		t.Failf("input () has no batch")
	}
	return t.View(x, append([]int{x.Shape[0]}, l...)...)
}

type PixelShuffle nn.PixelShuffle

func (l PixelShuffle) Declare(d *tape.Declaration) { d.Want("the factor", int(l), 1) }

func (l PixelShuffle) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	square := int64(l) * int64(l)
	if l < 1 || int64(x.Shape[1])%square != 0 || max(x.Shape[2], x.Shape[3]) > setting.MaxField {
		t.Failf("input %v does not have channels for pixels of %d x %d", x.Shape, l, l)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], int(int64(x.Shape[1]) / square), x.Shape[2] * int(l), x.Shape[3] * int(l)}})
}

type ZeroPad2d nn.ZeroPad2d

func (l ZeroPad2d) Declare(d *tape.Declaration) {
	for i, side := range [...]string{"left", "right", "top", "bottom"} {
		d.Want(side, l[i], -setting.MaxField)
	}
}

func (l ZeroPad2d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	high, wide := int64(x.Shape[2])+int64(l[2])+int64(l[3]), int64(x.Shape[3])+int64(l[0])+int64(l[1])
	if min(high, wide) < 1 || max(high, wide) > setting.MaxField {
		t.Failf("input %v padded to %d x %d pixels: want at least one, and at most %d a side", x.Shape, high, wide, setting.MaxField)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[1], int(high), int(wide)}})
}

// PatchMerging makes one pixel with twice the channels of two by two, over (batch, height, width,
// channels), as Swin does between its stages (arXiv:2103.14030, section 3.1). An odd side is padded.
type PatchMerging struct{ Channels int }

// module returns the norm and the projection.
func (l PatchMerging) module() tape.Module {
	return tape.Module{
		Parts: tape.Sequential{
			tape.As("norm", LayerNorm{Size: 4 * l.Channels}),
			tape.As("reduction", Linear{In: 4 * l.Channels, Out: 2 * l.Channels, NoBias: true}),
		},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			quarter := f.Part(f.Part(f.Copy(x), 1, (x.Dim(1)+1)/2), 2, (x.Dim(2)+1)/2)
			return f.Call("reduction", f.Call("norm", f.Cat(3, quarter, quarter, quarter, quarter)))
		},
	}
}

func (l PatchMerging) Declare(d *tape.Declaration) {
	d.Want("Channels", l.Channels, 1)
	l.module().Declare(d)
}

func (l PatchMerging) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, height, width, channels)")
	t.Width(x, 3, l.Channels, "channels")
	return l.module().Forward(t, x)
}

// MaxPool is an nn.MaxPool. Kernels, Strides and Paddings, one for each dimension, win where they are not zero.
type MaxPool struct {
	Kernel, Stride, Padding, Dilation int
	Ceil                              bool
	Kernels, Strides, Paddings        [3]int
}

type AvgPool MaxPool

// poolOf is the pooling of package nn.
func poolOf(l nn.MaxPool) MaxPool {
	return MaxPool{Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding, Ceil: l.Ceil}
}

type AdaptiveAvgPool nn.AdaptiveAvgPool

type AdaptiveMaxPool nn.AdaptiveMaxPool

func (l AdaptiveMaxPool) Declare(d *tape.Declaration) { AdaptiveAvgPool(l).Declare(d) }

func (l AdaptiveAvgPool) Declare(d *tape.Declaration) { d.Want("the length of the output", int(l), 1) }

func (l AdaptiveMaxPool) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := adapted(t, x, int(l))
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: shape, DType: alloc.Int64}}})
}

func (l AdaptiveAvgPool) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := adapted(t, x, int(l))
	o := tape.Op{In: []tape.Tensor{x}, Shape: shape}
	if l != 1 || t.Cfg.Release.KeepsMeans() { // with one output position it is a mean
		o.Keep = o.In
	}
	return t.Op(o)
}

// adapted returns the shape of x with this length in each dimension after the channels.
func adapted(t *tape.Tape, x tape.Tensor, length int) alloc.Shape {
	dims := spatialDims(t, x)
	shape := slices.Clone(x.Shape)
	for i := range dims {
		shape[2+i] = length
	}
	return shape
}

// spatialDims returns the number of dimensions after the channels, one to three.
func spatialDims(t *tape.Tape, x tape.Tensor) int {
	n := len(x.Shape) - 2
	if n < 1 || n > 3 {
		t.Failf("input %v: want (batch, channels, ...) with one to three dimensions after the channels", x.Shape)
	}
	return n
}

// Declare checks the settings of the dimensions that have some of their own, and of one that has not.
func (l MaxPool) Declare(d *tape.Declaration) {
	dims := 1
	for i := range 3 {
		if l.Kernels[i] != 0 || l.Strides[i] != 0 || l.Paddings[i] != 0 {
			dims = i + 1
		}
	}
	w := l.window(dims)
	w.check(d)
	for i := range w.dims {
		if 2*w.padding[i] > w.kernel[i] {
			d.Failf("Padding is %d: want at most half of the Kernel, %d", w.padding[i], w.kernel[i])
		}
	}
}

func (l AvgPool) Declare(d *tape.Declaration) { MaxPool(l).Declare(d) }

func (l MaxPool) window(dims int) window {
	w := cube(dims, l.Kernel, l.Stride, l.Padding, l.Dilation)
	w.set(l.Kernels, l.Strides, l.Paddings)
	for i := range w.dims {
		w.stride[i] = setting.Or(l.Strides[i], setting.Or(l.Stride, w.kernel[i]))
	}
	return w
}

// pooled returns the shape of the output.
func (l MaxPool) pooled(t *tape.Tape, x tape.Tensor) alloc.Shape {
	dims := spatialDims(t, x)
	w, shape := l.window(dims), slices.Clone(x.Shape)
	for i := range dims {
		if k := w.kernel[i]; min(k, w.stride[i], w.padding[i]+1) < 1 || max(k, w.stride[i]) > setting.MaxField || w.padding[i] > k/2 {
			t.Failf("Kernel %d, Stride %d and Padding %d of dimension %d of input %v make no sense", k, w.stride[i], w.padding[i], i, x.Shape)
		}
		if shape[2+i] = w.outputs(i, x.Shape[2+i], l.Ceil); shape[2+i] <= 0 {
			t.Failf("input %v is too small for a kernel of %d", x.Shape, w.kernel[i])
		}
	}
	return shape
}

func (l MaxPool) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := l.pooled(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: shape, DType: alloc.Int64}}})
}

func (l AvgPool) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := MaxPool(l).pooled(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}})
}

type Upsample nn.Upsample

func (l Upsample) Declare(d *tape.Declaration) { d.Want("the factor", int(l), 1) }

func (l Upsample) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 3 {
		t.Failf("input %v has nothing after its channels to scale", x.Shape)
	}
	shape := slices.Clone(x.Shape)
	for i := range shape[2:] {
		if shape[2+i] > setting.MaxField {
			t.Failf("input %v is too large to scale", x.Shape)
		}
		shape[2+i] *= int(l)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
}
