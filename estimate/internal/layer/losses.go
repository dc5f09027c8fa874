package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type NLL struct{}

type Huber struct{}

type KLDiv struct{}

type CTC nn.CTC

func (l CTC) Declare(d *tape.Declaration) { d.Want("the number of letters", int(l), 1) }

func (NLL) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	t.Rank(x, 2, "(batch, classes)")
	target := t.Const(alloc.Int64, x.Shape[0])
	return t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, target}, KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}})
}

func (Huber) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (KLDiv) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	target := t.Const(x.DType, x.Shape...)
	product := t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: x.Shape, Keep: []tape.Tensor{target}})
	return t.Op(tape.Op{In: []tape.Tensor{product}, Shape: alloc.Shape{}})
}

func (l CTC) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	t.Rank(x, 3, "(steps, batch, letters)")
	batch := x.Shape[1]
	text := t.Const(alloc.Int64, batch, int(l))
	each := tape.Own{Shape: alloc.Shape{batch}}
	return t.Op(tape.Op{
		In: []tape.Tensor{x, text}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, text},
		KeepOwn: []tape.Own{each, each, {Shape: alloc.Shape{batch, x.Shape[0], 2*min(int(l), setting.MaxField) + 1}}}, // losses, lengths, alphas
	})
}
