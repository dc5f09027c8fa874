package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// NLL is nn.NLLLoss over (batch, classes); it keeps its input and the targets.
type NLL struct{}

// Huber is nn.HuberLoss and nn.SmoothL1Loss; it keeps its input and the target.
type Huber struct{}

// KLDiv is nn.KLDivLoss; it keeps the target.
type KLDiv struct{}

// CTC is nn.CTCLoss of (steps, batch, letters), with texts of so many letters. It keeps its input,
// the texts, and a number for each step and each place of a text.
type CTC struct{ Letters int }

// Declare implements Layer.
func (NLL) Declare(*Declaration) {}

// Declare implements Layer.
func (Huber) Declare(*Declaration) {}

// Declare implements Layer.
func (KLDiv) Declare(*Declaration) {}

// Declare implements Layer.
func (l CTC) Declare(d *Declaration) { d.want("Letters", l.Letters, 1) }

// Forward implements Layer.
func (NLL) Forward(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	if err := t.rank(x, 2, "(batch, classes)"); err != nil {
		return Tensor{}, err
	}
	target, err := t.Const(alloc.Int64, x.Shape[0])
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x, target}, Shape: alloc.Shape{}, Keep: []Tensor{x, target}, KeepOwn: []Own{{Shape: alloc.Shape{}}}})
}

// Forward implements Layer.
func (Huber) Forward(t *Tape, x Tensor) (Tensor, error) { return against(t, x) }

// Forward implements Layer.
func (KLDiv) Forward(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	target, err := t.Const(x.DType, x.Shape...)
	if err != nil {
		return Tensor{}, err
	}
	product, err := t.Op(Op{In: []Tensor{x, target}, Shape: x.Shape, Keep: []Tensor{target}})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{product}, Shape: alloc.Shape{}})
}

// Forward implements Layer.
func (l CTC) Forward(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	if err := t.rank(x, 3, "(steps, batch, letters)"); err != nil {
		return Tensor{}, err
	}
	batch := x.Shape[1]
	text, err := t.Const(alloc.Int64, batch, l.Letters)
	if err != nil {
		return Tensor{}, err
	}
	each := Own{Shape: alloc.Shape{batch}}
	return t.Op(Op{
		In: []Tensor{x, text}, Shape: alloc.Shape{}, Keep: []Tensor{x, text},
		KeepOwn: []Own{each, each, {Shape: alloc.Shape{batch, x.Shape[0], 2*min(l.Letters, maxField) + 1}}}, // losses, lengths, alphas
	})
}
