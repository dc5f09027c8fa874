package estimate

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Flatten is nn.Flatten: all dimensions from the first on become one. The output
// is a view.
type Flatten struct {
	Start int // 0 means 1, after the batch
}

// Declare implements Layer.
func (l Flatten) Declare(d *Declaration) { d.want("Start", l.Start, 0) }

// Forward implements Layer.
func (l Flatten) Forward(t *Tape, x Tensor) (Tensor, error) {
	start := or(l.Start, 1)
	if start >= len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has no dimension %d to flatten from", x.Shape, start)
	}
	n, err := x.Shape[start:].Elements()
	if err != nil {
		return Tensor{}, t.wrap("input", err)
	}
	shape := append(x.Shape[:start:start], int(n))
	return t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
}

// Reshape gives its input another shape, as a view. The batch, dimension 0, stays;
// one of Dims may be -1 and is then computed.
type Reshape struct {
	Dims []int // those after the batch
}

// Declare implements Layer.
func (l Reshape) Declare(d *Declaration) {
	unknown := 0
	for _, n := range l.Dims {
		if n == -1 {
			unknown++
		} else if !d.want("each of Dims", n, 1) {
			return
		}
	}
	if unknown > 1 {
		d.Errorf("Dims are %v: at most one may be -1", l.Dims)
	}
}

// Forward implements Layer.
func (l Reshape) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(x.Shape) == 0 {
		return Tensor{}, t.Errorf("input () has no batch")
	}
	return seen(t, x, append([]int{x.Shape[0]}, l.Dims...))
}

// seen is x as a view of another shape, of whose dimensions one may be -1.
func seen(t *Tape, x Tensor, dims []int) (Tensor, error) {
	shape := append(alloc.Shape{}, dims...)
	have, err := x.Shape.Elements()
	if err != nil {
		return Tensor{}, t.wrap("input", err)
	}
	unknown := slices.Index(shape, -1)
	if unknown >= 0 {
		shape[unknown] = 1
	}
	known, err := shape.Elements()
	if err != nil {
		return Tensor{}, t.wrap("Dims", err)
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

// Permute puts the dimensions into another order, as a view. A Linear that reads it copies it into
// that order first, where a view of the batch's rows is not one matrix.
type Permute struct{ Dims []int } // such as (0, 2, 3, 1)

// PixelShuffle is nn.PixelShuffle: channels become pixels, Factor more each way.
type PixelShuffle struct{ Factor int }

// Declare implements Layer.
func (l Permute) Declare(d *Declaration) {
	sorted := slices.Sorted(slices.Values(l.Dims))
	for i, n := range sorted {
		if n != i {
			d.Errorf("Dims are %v: want each of 0 to %d once", l.Dims, len(l.Dims)-1)
			return
		}
	}
}

// Declare implements Layer.
func (l PixelShuffle) Declare(d *Declaration) { d.want("Factor", l.Factor, 1) }

// Forward implements Layer.
func (l Permute) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(l.Dims) != len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has %d dimensions, not the %d of %v", x.Shape, len(x.Shape), len(l.Dims), l.Dims)
	}
	shape := make(alloc.Shape, len(l.Dims))
	for i, from := range l.Dims {
		if from < 0 || from >= len(x.Shape) {
			return Tensor{}, t.Errorf("input %v has no dimension %d", x.Shape, from)
		}
		shape[i] = x.Shape[from]
	}
	y, err := t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
	y.strewn = l.strews(x.Shape)
	return y, err
}

// strews reports whether the rows, all dimensions but the last, are not one dimension of equal steps:
// those longer than 1 must follow one another as in the input.
func (l Permute) strews(shape alloc.Shape) bool {
	next := -1
	for _, from := range l.Dims[:max(0, len(l.Dims)-1)] {
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

// Forward implements Layer.
func (l PixelShuffle) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return Tensor{}, err
	}
	square := int64(l.Factor) * int64(l.Factor)
	if l.Factor < 1 || int64(x.Shape[1])%square != 0 || max(x.Shape[2], x.Shape[3]) > maxField {
		return Tensor{}, t.Errorf("input %v does not have channels for pixels of %d x %d", x.Shape, l.Factor, l.Factor)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], int(int64(x.Shape[1]) / square), x.Shape[2] * l.Factor, x.Shape[3] * l.Factor}})
}
