package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type MaxPool nn.MaxPool

type AvgPool nn.AvgPool

type AdaptiveAvgPool nn.AdaptiveAvgPool

type AdaptiveMaxPool nn.AdaptiveMaxPool

func (l AdaptiveMaxPool) Declare(d *tape.Declaration) { AdaptiveAvgPool(l).Declare(d) }

func (l AdaptiveMaxPool) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	dims := setting.Or(l.Dims, 2)
	if err := t.Rank(x, dims+2, spatial[dims]); err != nil {
		return tape.Tensor{}, err
	}
	shape := slices.Clone(x.Shape)
	for i := range dims {
		shape[2+i] = l.Out
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: shape, DType: alloc.Int64}}})
}

func (l MaxPool) Declare(d *tape.Declaration) {
	if !l.dims(d) {
		return
	}
	w := l.window()
	if !w.check(d) {
		return
	}
	for i := range w.dims {
		if 2*w.padding[i] > w.kernel[i] {
			d.Errorf("Padding is %d: want at most half of the Kernel, %d", w.padding[i], w.kernel[i])
			return
		}
	}
}

func (l AvgPool) Declare(d *tape.Declaration) {
	MaxPool{Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding, Dims: l.Dims}.Declare(d)
}

func (l AdaptiveAvgPool) Declare(d *tape.Declaration) {
	if (MaxPool{Dims: l.Dims}).dims(d) {
		d.Want("Out", l.Out, 1)
	}
}

func (l MaxPool) dims(d *tape.Declaration) bool {
	if n := setting.Or(l.Dims, 2); n < 1 || n > 3 {
		d.Errorf("Dims is %d: want 1, 2 or 3", n)
		return false
	}
	return true
}

func (l MaxPool) window() window {
	w := cube(setting.Or(l.Dims, 2), l.Kernel, l.Stride, l.Padding, l.Dilation)
	w.set(l.Kernels, l.Strides, l.Paddings, [3]int{})
	for i := range w.dims {
		w.stride[i] = setting.Or(l.Strides[i], setting.Or(l.Stride, w.kernel[i]))
	}
	return w
}

func (l MaxPool) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	shape, err := pooled(t, x, l.window(), l.Ceil)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: shape, DType: alloc.Int64}}})
}

func (l AvgPool) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	w := cube(setting.Or(l.Dims, 2), l.Kernel, setting.Or(l.Stride, l.Kernel), l.Padding, 1)
	shape, err := pooled(t, x, w, l.Ceil)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}})
}

func pooled(t *tape.Tape, x tape.Tensor, w window, ceil bool) (alloc.Shape, error) {
	if err := t.Rank(x, w.dims+2, spatial[w.dims]); err != nil {
		return nil, err
	}
	shape := slices.Clone(x.Shape)
	for i := range w.dims {
		if shape[2+i] = w.places(i, x.Shape[2+i], ceil); shape[2+i] <= 0 {
			return nil, t.Errorf("input %v is too small for a kernel of %d", x.Shape, w.kernel[i])
		}
	}
	return shape, nil
}

func (l AdaptiveAvgPool) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	dims := setting.Or(l.Dims, 2)
	if err := t.Rank(x, dims+2, spatial[dims]); err != nil {
		return tape.Tensor{}, err
	}
	shape := slices.Clone(x.Shape)
	for i := range dims {
		shape[2+i] = l.Out
	}
	o := tape.Op{In: []tape.Tensor{x}, Shape: shape}
	if l.Out != 1 || t.Cfg.Release.KeepsMeans() { // with one output place it is a mean
		o.Keep = o.In
	}
	return t.Op(o)
}

type Upsample nn.Upsample

func (l Upsample) Declare(d *tape.Declaration) { d.Want("Scale", l.Scale, 1) }

func (l Upsample) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if len(x.Shape) < 3 {
		return tape.Tensor{}, t.Errorf("input %v has nothing after its channels to scale", x.Shape)
	}
	shape := slices.Clone(x.Shape)
	for i := range shape[2:] {
		if shape[2+i] > setting.MaxField {
			return tape.Tensor{}, t.Errorf("input %v is too large to scale", x.Shape)
		}
		shape[2+i] *= l.Scale
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
}
