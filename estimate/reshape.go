package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

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
	shape := append(alloc.Shape{x.Shape[0]}, l.Dims...)
	have, err := x.Shape.Elements()
	if err != nil {
		return Tensor{}, t.wrap("input", err)
	}
	unknown := -1
	for i, n := range shape {
		if n == -1 {
			unknown, shape[i] = i, 1
		}
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
		return Tensor{}, t.Errorf("input %v does not take the shape %v: it has %d elements", x.Shape, append(alloc.Shape{x.Shape[0]}, l.Dims...), have)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
}
