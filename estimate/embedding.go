package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

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
	reads := []Tensor{x}
	return t.Op(Op{
		In: reads, Shape: append(x.Shape.Clone(), l.Dim), DType: t.Activation(),
		Params: true, Keep: t.forWeights(reads),
	})
}
