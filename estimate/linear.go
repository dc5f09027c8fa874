package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Linear is y = xW' + b over the last dimension, as nn.Linear. It keeps its
// input.
type Linear struct {
	In, Out int
	NoBias  bool
	// Tied is the path of the parameter that serves as the weight; see Param.
	Tied string
	// Split divides the layer among the devices of a tensor parallel group.
	Split Split
}

// Split is how tensor parallelism cuts the weight of a Linear
// (arXiv:1909.08053, section 3).
type Split uint8

// The ways to split.
const (
	Whole     Split = iota // each device has all of it
	ByColumns              // each device computes a part of the outputs
	ByRows                 // each device reads a part of the inputs; the sum is whole
)

// Declare implements Layer.
func (l Linear) Declare(d *Declaration) {
	if !d.want("In", l.In, 1) || !d.want("Out", l.Out, 1) {
		return
	}
	if l.Split > ByRows {
		d.Errorf("Split is %d: want Whole, ByColumns or ByRows", l.Split)
		return
	}
	d.Add(Param{Name: "weight", Shape: alloc.Shape{l.Out, l.In}, Tied: l.Tied, Split: l.Split != Whole})
	if !l.NoBias {
		d.Add(Param{Name: "bias", Shape: alloc.Shape{l.Out}, Split: l.Split == ByColumns})
	}
}

// Forward implements Layer.
func (l Linear) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.width(x, -1, l.In, "features"); err != nil {
		return Tensor{}, err
	}
	shape := t.resized(x.Shape, l.Out)
	return t.Op(Op{
		In: []Tensor{x}, Shape: shape, DType: t.Activation(), Params: true, Keep: []Tensor{x},
		Split: l.Split == ByColumns && t.cfg.sharding.Tensor > 1, Gather: l.Split == ByRows,
		FLOPs: flops(shape, l.In, 2),
	})
}

// Embedding looks up vectors by number, as nn.Embedding. It keeps the numbers.
type Embedding struct {
	Num, Dim int
	Split    bool // tensor parallelism divides the table
}

// Declare implements Layer.
func (l Embedding) Declare(d *Declaration) {
	if d.want("Num", l.Num, 1) && d.want("Dim", l.Dim, 1) {
		d.Add(Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split})
	}
}

// Forward implements Layer.
func (l Embedding) Forward(t *Tape, x Tensor) (Tensor, error) {
	if x.DType != alloc.Int64 && x.DType != alloc.Int32 {
		return Tensor{}, t.Errorf("input is of %v: want int64 or int32, such as Tokens gives", x.DType)
	}
	return t.Op(Op{
		In: []Tensor{x}, Shape: append(x.Shape.Clone(), l.Dim), DType: t.Activation(),
		Params: true, Keep: []Tensor{x},
	})
}

// Parameter adds a learned tensor to its input, broadcast over the batch, as
// position embeddings are added.
type Parameter struct {
	Name  string
	Shape alloc.Shape // such as (1, 197, 768)
}

// Declare implements Layer.
func (l Parameter) Declare(d *Declaration) { d.Param(or(l.Name, "weight"), l.Shape...) }

// Forward implements Layer.
func (l Parameter) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(l.Shape) > len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has fewer dimensions than the parameter, %v", x.Shape, l.Shape)
	}
	for i, n := range l.Shape {
		if have := x.Shape[len(x.Shape)-len(l.Shape)+i]; n != 1 && n != have {
			return Tensor{}, t.Errorf("input %v cannot be added to the parameter, %v", x.Shape, l.Shape)
		}
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, Params: true, PassGrad: true})
}

// Identity passes its input on.
type Identity struct{}

// Declare implements Layer.
func (Identity) Declare(*Declaration) {}

// Forward implements Layer.
func (Identity) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }
