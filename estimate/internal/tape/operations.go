package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Seen returns a view of x in another shape, of which one dimension may be -1.
func Seen(t *Tape, x Tensor, dims []int) (Tensor, error) {
	shape := append(alloc.Shape{}, dims...)
	have, err := x.Shape.Elements()
	if err != nil {
		return Tensor{}, t.Wrap("input", err)
	}
	unknown := slices.Index(shape, -1)
	if unknown >= 0 {
		shape[unknown] = 1
	}
	known, err := shape.Elements()
	if err != nil {
		return Tensor{}, t.Wrap("Dims", err)
	}
	if unknown >= 0 && known > 0 && have%known == 0 {
		shape[unknown] = int(have / known)
		known = have
	}
	if known != have {
		return Tensor{}, t.Errorf("input %v does not take the shape %v: it has %d elements", x.Shape, alloc.Shape(dims), have)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
}

// Permute returns a view with the dimensions in another order. A Linear that reads the view first
// copies it, unless all its rows lie at equal steps in memory.
type Permute []int // such as {0, 2, 3, 1}

func (l Permute) Declare(d *Declaration) {
	sorted := slices.Sorted(slices.Values(l))
	for i, n := range sorted {
		if n != i {
			d.Errorf("dimensions %v: want each of 0 to %d once", []int(l), len(l)-1)
			return
		}
	}
}

func (l Permute) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(l) != len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has %d dimensions, not the %d of %v", x.Shape, len(x.Shape), len(l), []int(l))
	}
	shape := make(alloc.Shape, len(l))
	for i, from := range l {
		if from < 0 || from >= len(x.Shape) {
			return Tensor{}, t.Errorf("input %v has no dimension %d", x.Shape, from)
		}
		shape[i] = x.Shape[from]
	}
	y, err := t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
	y.Strewn = l.strews(x.Shape)
	return y, err
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

// Mul records x * y with y broadcast to x. It keeps x if y needs a gradient, and y if x does.
func Mul(t *Tape, x, y Tensor) (Tensor, error) {
	o := Op{In: []Tensor{x, y}, Shape: x.Shape}
	switch {
	case x.Grad && y.Grad:
		o.Keep = o.In
	case x.Grad:
		o.Keep = o.In[1:]
	case y.Grad:
		o.Keep = o.In[:1]
	}
	if y.Grad && !slices.Equal(y.Shape, x.Shape) { // y's gradient is summed from a tensor as large as x
		o.BackwardWorkspace = t.Size(x)
	}
	return t.Op(o)
}

// In casts x to an element type.
func (f *Flow) In(d alloc.DType, x Tensor) Tensor {
	if x.DType == d {
		return x
	}
	return f.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: d})
}
