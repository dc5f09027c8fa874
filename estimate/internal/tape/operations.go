package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Sum records y + x for two tensors of the same shape.
func (t *Tape) Sum(y, x Tensor) Tensor {
	if !slices.Equal(y.Shape, x.Shape) {
		t.Failf("adds %v and %v: the shapes must be equal", y.Shape, x.Shape)
	}
	return t.Add(y, x)
}

// Add records x + y, with y broadcast to x.
func (t *Tape) Add(x, y Tensor) Tensor {
	t.fits(x, y)
	return t.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), Gather: !x.split || !y.split})
}

// AddTo records x += y, in the memory of x.
func (t *Tape) AddTo(x, y Tensor) Tensor {
	t.fits(x, y)
	return t.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), InPlace: true})
}

// Mul records x * y, with y broadcast to x. It keeps x if y needs a gradient, and y if x does.
func (t *Tape) Mul(x, y Tensor) Tensor {
	t.fits(x, y)
	o := Op{In: []Tensor{x, y}, Shape: x.Shape}
	switch {
	case x.grad && y.grad:
		o.Keep = o.In
	case x.grad:
		o.Keep = o.In[1:]
	case y.grad:
		o.Keep = o.In[:1]
	}
	if y.grad && !slices.Equal(y.Shape, x.Shape) { // y's gradient is summed from a tensor as large as x
		o.BackwardWorkspace = t.Size(x)
	}
	return t.Op(o)
}

// fits fails unless y can be broadcast to x.
func (t *Tape) fits(x, y Tensor) {
	off := len(x.Shape) - len(y.Shape)
	ok := off >= 0
	for i := 0; ok && i < len(y.Shape); i++ {
		ok = y.Shape[i] == 1 || y.Shape[i] == x.Shape[off+i]
	}
	if !ok {
		t.Failf("%v does not broadcast to %v", y.Shape, x.Shape)
	}
}

// Scale records x times a number, or x plus a number, in new memory.
func (t *Tape) Scale(x Tensor) Tensor { return t.Op(Op{In: []Tensor{x}, Shape: x.Shape}) }

// Copy records a copy of x in new memory, as contiguous() makes, or reshape of permuted dimensions.
func (t *Tape) Copy(x Tensor) Tensor { return t.Scale(x) }

// In casts x to an element type.
func (t *Tape) In(d alloc.DType, x Tensor) Tensor {
	if x.DType == d {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: d})
}

// MatMul records the product of two tensors and keeps both for the backward pass. The output has
// the given shape; sum is the length of the dimension that is summed over.
func (t *Tape) MatMul(x, y Tensor, sum int, shape ...int) Tensor {
	return t.Op(Op{In: []Tensor{x, y}, Shape: shape, Keep: []Tensor{x, y}, FLOPs: setting.Flops(shape, sum, 2)})
}

// Apply runs a layer that has no parameters, such as SiLU. It gets no row of its own in the report.
func (t *Tape) Apply(l Layer, x Tensor) Tensor {
	if IsNil(l) {
		t.Failf("it applies no layer")
	}
	return l.Forward(t, x)
}

// View returns x in another shape, in the same memory. One of the dimensions may be -1.
func (t *Tape) View(x Tensor, dims ...int) Tensor {
	shape := append(alloc.Shape{}, dims...)
	have, err := x.Shape.Elements()
	if err != nil {
		t.fail("input", err)
	}
	unknown := slices.Index(shape, -1)
	if unknown >= 0 {
		shape[unknown] = 1
	}
	known, err := shape.Elements()
	if err != nil {
		t.fail("Dims", err)
	}
	if unknown >= 0 && known > 0 && have%known == 0 {
		shape[unknown] = int(have / known)
		known = have
	}
	if known != have {
		t.Failf("input %v does not take the shape %v: it has %d elements", x.Shape, alloc.Shape(dims), have)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
}

// Permute returns x with its dimensions in another order, in the same memory. Copy it for an
// operation that needs the elements one after another.
func (t *Tape) Permute(x Tensor, dims ...int) Tensor { return Permute(dims).Forward(t, x) }

// Permute returns a view with the dimensions in another order. A Linear that reads the view first
// copies it, unless all its rows lie at equal steps in memory.
type Permute []int // such as {0, 2, 3, 1}

func (l Permute) Declare(d *Declaration) {
	sorted := slices.Sorted(slices.Values(l))
	for i, n := range sorted {
		if n != i {
			d.Failf("dimensions %v: want each of 0 to %d once", []int(l), len(l)-1)
		}
	}
}

func (l Permute) Forward(t *Tape, x Tensor) Tensor {
	t.ranked(x, l)
	shape := make(alloc.Shape, len(l))
	for i, from := range l {
		shape[i] = x.Shape[from]
	}
	y := t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
	y.strewn = l.strews(x.Shape)
	return y
}

// ranked fails unless x has these dimensions and no others.
func (t *Tape) ranked(x Tensor, dims []int) {
	if len(dims) != len(x.Shape) {
		t.Failf("input %v has %d dimensions, not the %d of %v", x.Shape, len(x.Shape), len(dims), dims)
	}
	for _, i := range dims {
		if i < 0 || i >= len(x.Shape) {
			t.Failf("input %v has no dimension %d", x.Shape, i)
		}
	}
}

// strews reports whether the rows of the view (all dimensions but the last) do not lie at equal
// steps in memory. They do if the dimensions longer than 1 follow each other as in the input.
func (l Permute) strews(shape alloc.Shape) bool {
	next := -1
	for _, from := range l[:max(0, len(l)-1)] {
		if shape[from] == 1 {
			continue
		}
		for next >= 0 && next < from && shape[next] == 1 {
			next++
		}
		if next >= 0 && next != from {
			return true
		}
		next = from + 1
	}
	return false
}

// Resize records x with other lengths of the dimensions after the channels, in new memory, as
// torch.nn.functional.interpolate does. It keeps nothing.
func (t *Tape) Resize(x Tensor, sizes ...int) Tensor {
	if len(sizes) == 0 || len(x.Shape) != 2+len(sizes) {
		t.Failf("resizes %v to %v: want a size for each dimension after the channels", x.Shape, sizes)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: t.Resized(x.Shape, sizes...)})
}

// Cat joins tensors along a dimension. It fails if their other lengths differ.
func (t *Tape) Cat(dim int, xs ...Tensor) Tensor {
	if len(xs) == 0 || xs[0].Shape == nil {
		t.Failf("concatenates no tensors")
	}
	shape := slices.Clone(xs[0].Shape)
	if dim < 0 || dim >= len(shape) {
		t.Failf("concatenates along dimension %d of %v, which has %d", dim, shape, len(shape))
	}
	for _, x := range xs[1:] {
		if len(x.Shape) != len(shape) || !slices.Equal(x.Shape[:dim], shape[:dim]) || !slices.Equal(x.Shape[dim+1:], shape[dim+1:]) {
			t.Failf("concatenates %v and %v along dimension %d: the others must be equal", xs[0].Shape, x.Shape, dim)
		}
		shape[dim] += x.Shape[dim]
	}
	return t.Op(Op{In: xs, Shape: shape, PassGrad: true})
}

// Part returns the first n elements of x along a dimension, in the same memory.
func (t *Tape) Part(x Tensor, dim, n int) Tensor { return t.Split(x, dim, n)[0] }

// Split divides x along a dimension into parts of these lengths, in the same memory, as torch.split
// and torch.chunk do. The backward pass joins their gradients in a new tensor.
func (t *Tape) Split(x Tensor, dim int, lengths ...int) []Tensor {
	shapes := make([]alloc.Shape, len(lengths))
	sum, ok := 0, len(lengths) > 0 && dim >= 0 && dim < len(x.Shape)
	for i, n := range lengths {
		if ok = ok && n > 0 && n <= x.Shape[dim]-sum; ok {
			shapes[i] = slices.Clone(x.Shape)
			shapes[i][dim] = n
			sum += n
		}
	}
	if !ok {
		t.Failf("parts of %v along dimension %d of %v: it does not have those", lengths, dim, x.Shape)
	}
	return t.Views(x, shapes...)
}
