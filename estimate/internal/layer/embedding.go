package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Embedding nn.Embedding

func (l Embedding) Declare(d *tape.Declaration) {
	if d.Want("Num", l.Num, 1) && d.Want("Dim", l.Dim, 1) {
		d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split})
	}
}

func (l Embedding) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if x.DType != alloc.Int64 && x.DType != alloc.Int32 {
		return tape.Tensor{}, t.Errorf("input is of %v: want int64 or int32, such as Tokens gives", x.DType)
	}
	reads := []tape.Tensor{x}
	return t.Op(tape.Op{
		In: reads, Shape: append(x.Shape.Clone(), l.Dim), DType: t.Activation(),
		Params: true, Keep: t.ForWeights(reads),
	})
}
