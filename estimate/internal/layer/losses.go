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

func (NLL) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	judge(t, x)
	if err := t.Rank(x, 2, "(batch, classes)"); err != nil {
		return tape.Tensor{}, err
	}
	target, err := t.Const(alloc.Int64, x.Shape[0])
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, target}, KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}})
}

func (Huber) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) { return against(t, x) }

func (KLDiv) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	judge(t, x)
	target, err := t.Const(x.DType, x.Shape...)
	if err != nil {
		return tape.Tensor{}, err
	}
	product, err := t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: x.Shape, Keep: []tape.Tensor{target}})
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{product}, Shape: alloc.Shape{}})
}

func (l CTC) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	judge(t, x)
	if err := t.Rank(x, 3, "(steps, batch, letters)"); err != nil {
		return tape.Tensor{}, err
	}
	batch := x.Shape[1]
	text, err := t.Const(alloc.Int64, batch, int(l))
	if err != nil {
		return tape.Tensor{}, err
	}
	each := tape.Own{Shape: alloc.Shape{batch}}
	return t.Op(tape.Op{
		In: []tape.Tensor{x, text}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, text},
		KeepOwn: []tape.Own{each, each, {Shape: alloc.Shape{batch, x.Shape[0], 2*min(int(l), setting.MaxField) + 1}}}, // losses, lengths, alphas
	})
}
