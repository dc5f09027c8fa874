package estimate

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// CrossEntropy is nn.CrossEntropyLoss, with a number of the right class for each vector
// of logits. It keeps the logarithms of the probabilities and the targets. Losses make
// their own targets.
type CrossEntropy struct {
	// Dim is the dimension of the classes; 0 means the last, as language models have
	// it. Where each pixel of an image has a class it is 1.
	Dim int
}

// NextToken is the loss of language models in Hugging Face's transformers
// (loss/loss_utils.py, ForCausalLMLoss, from 4.46 on): logits in float32, shifted by a token, which copies
// them, and CrossEntropy. Both copies live until the loss is there.
type NextToken struct {
	// AsIs leaves the logits in their type.
	AsIs bool
	// Widened makes the logits float32 in the model, which returns them so, as transformers before
	// 4.46 did: those in their own type die then.
	Widened bool
	// Fused is a loss in one kernel, which shifts the targets in place of the logits, as
	// torch.compile, Unsloth and flash-attn make it. It keeps the logits as they are, and for each
	// token the largest, and the logarithm of the sum of their exponentials.
	Fused bool
}

// MSE is nn.MSELoss; it keeps its input and the target.
type MSE struct{}

// L1 is nn.L1Loss; it keeps the difference.
type L1 struct{}

// BCEWithLogits is nn.BCEWithLogitsLoss; it keeps its input and the target.
type BCEWithLogits struct{}

// Declare implements Layer.
func (l CrossEntropy) Declare(d *Declaration) { d.want("Dim", l.Dim, 0) }

// Declare implements Layer.
func (NextToken) Declare(*Declaration) {}

// Declare implements Layer.
func (MSE) Declare(*Declaration) {}

// Declare implements Layer.
func (L1) Declare(*Declaration) {}

// Declare implements Layer.
func (BCEWithLogits) Declare(*Declaration) {}

// Forward implements Layer.
func (l CrossEntropy) Forward(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	if len(x.Shape) < 2 || l.Dim >= len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has no classes: want (batch, ..., classes), or those in dimension Dim", x.Shape)
	}
	dim := or(l.Dim, len(x.Shape)-1)
	target, err := t.Const(alloc.Int64, slices.Delete(slices.Clone(x.Shape), dim, dim+1)...)
	if err != nil {
		return Tensor{}, err
	}
	log, err := keepLogSoftmax(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{
		In: []Tensor{log, target}, Shape: alloc.Shape{}, Keep: []Tensor{target},
		KeepOwn: []Own{{Shape: alloc.Shape{}}}, // the weight of all targets
	})
}

// Forward implements Layer.
func (l NextToken) Forward(t *Tape, x Tensor) (Tensor, error) {
	if !l.Widened {
		t.judge(x)
	}
	if err := t.rank(x, 3, "(batch, length, words)"); err != nil {
		return Tensor{}, err
	}
	if l.Fused {
		return l.of(t, x)
	}
	wide, err := l.widened(t, x)
	if err != nil {
		return Tensor{}, err
	}
	t.judge(wide)
	shape := wide.Shape.Clone()
	shape[1] = max(1, shape[1]-1)
	shifted, err := t.Op(Op{In: []Tensor{wide}, Shape: shape})
	if err != nil {
		return Tensor{}, err
	}
	loss, err := CrossEntropy{}.Forward(t, shifted)
	t.hold(wide) // both are variables of the function
	t.hold(shifted)
	return loss, err
}

// replaces reports whether the caller lets go of the logits when it has their copy.
func (l NextToken) replaces() bool { return l.Widened }

// widened is the logits in the type of the loss.
func (l NextToken) widened(t *Tape, x Tensor) (Tensor, error) {
	if l.AsIs || x.DType == alloc.Float32 {
		return x, nil
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// of is the loss of logits whose targets are shifted.
func (l NextToken) of(t *Tape, x Tensor) (Tensor, error) {
	if !l.Fused {
		x, err := l.widened(t, x)
		if err != nil {
			return Tensor{}, err
		}
		return CrossEntropy{}.Forward(t, x)
	}
	target, err := t.Const(alloc.Int64, x.Shape[:2]...)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{
		In: []Tensor{x, target}, Shape: alloc.Shape{}, DType: alloc.Float32, Keep: []Tensor{x, target},
		KeepOwn: []Own{{Shape: target.Shape, DType: alloc.Float32}, {Shape: target.Shape, DType: alloc.Float32}},
	})
}

// Forward implements Layer.
func (MSE) Forward(t *Tape, x Tensor) (Tensor, error) { return against(t, x) }

// Forward implements Layer.
func (BCEWithLogits) Forward(t *Tape, x Tensor) (Tensor, error) { return against(t, x) }

// Forward implements Layer.
func (L1) Forward(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{}, KeepOwn: []Own{{Shape: x.Shape}}})
}

// judge notes what a loss reads: the loop's code has it as the model's output.
func (t *Tape) judge(xs ...Tensor) {
	if t.answer != nil {
		return
	}
	for _, x := range xs {
		t.answer = append(t.answer, t.home(x.storage))
	}
}

// judgeLast notes what the last layer reads, a loss of the caller's own.
func (t *Tape) judgeLast() {
	first := len(t.ops) - 1
	for first > 0 && t.ops[first-1].row == t.ops[first].row {
		first--
	}
	if first >= 0 {
		t.answer = []int32{t.refs[t.ops[first].in]}
	}
}

// against is a loss that keeps the input and a target like it.
func against(t *Tape, x Tensor) (Tensor, error) {
	t.judge(x)
	target, err := t.Const(x.DType, x.Shape...)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x, target}, Shape: alloc.Shape{}, Keep: []Tensor{x, target}})
}
