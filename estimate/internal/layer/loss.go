package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

type CrossEntropy nn.CrossEntropy

type NextToken struct{ Fused bool }

type MSE struct{}

type L1 struct{}

type BCEWithLogits struct{}

func (l CrossEntropy) Declare(d *tape.Declaration) { d.Want("Dim", l.Dim, 0) }

func (l CrossEntropy) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	if len(x.Shape) < 2 || l.Dim >= len(x.Shape) {
		t.Failf("input %v has no classes: want (batch, ..., classes), or those in dimension Dim", x.Shape)
	}
	dim := setting.Or(l.Dim, len(x.Shape)-1)
	target := t.Const(alloc.Int64, slices.Delete(slices.Clone(x.Shape), dim, dim+1)...)
	log := keepLogSoftmax(t, x)
	return t.Op(tape.Op{
		In: []tape.Tensor{log, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{target},
		KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}, // the total weight of the targets
	})
}

func (l NextToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if !l.Replaces(t) {
		judge(t, x)
	}
	t.Rank(x, 3, "(batch, length, words)")
	if l.Fused {
		return l.of(t, x)
	}
	wide := l.widened(t, x)
	judge(t, wide)
	shape := slices.Clone(wide.Shape)
	shape[1] = max(1, shape[1]-1)
	shifted := t.Op(tape.Op{In: []tape.Tensor{wide}, Shape: shape})
	loss := CrossEntropy{}.Forward(t, shifted)
	t.Hold(wide) // variables of the function hold both
	t.Hold(shifted)
	return loss
}

// Replaces reports whether the caller drops the logits once it has their float32 copy, because the
// model itself made the copy.
func (l NextToken) Replaces(t *tape.Tape) bool {
	return !l.Fused && t.Cfg.WidensLogits() && !*rawLogits.Of(t)
}

// widened returns the logits in the element type of the loss.
func (l NextToken) widened(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.WidensLogits() && *rawLogits.Of(t) || x.DType == alloc.Float32 {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// rawLogits says that the model did not convert its logits to float32 even before ForCausalLMLoss
// did.
var rawLogits tape.Slot[bool]

// Headed returns an output head and its logits. Raw means that the model never converted them to
// float32 itself.
func Headed(head tape.Named, raw bool) []tape.Layer {
	return []tape.Layer{tape.Inline(lastToken{}), head, tape.Inline(Logits{Raw: raw})}
}

// lastToken keeps only the last token of each text, where no other needs logits.
type lastToken struct{}

func (lastToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) != 3 || !t.Cfg.LastLogits() {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, 1, x.Shape[2]), View: true})
}

// Logits stands for the output of a head, as older models returned it.
type Logits struct{ Raw bool }

// Forward casts to float32 if the model did so and no loss will.
func (l Logits) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	*rawLogits.Of(t) = l.Raw
	if l.Raw || t.Cfg.Cache == nil || t.Cfg.Training || !t.Cfg.WidensLogits() || x.DType == alloc.Float32 {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// of records the loss of logits against the next tokens.
func (l NextToken) of(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if !l.Fused {
		x := l.widened(t, x)
		return CrossEntropy{}.Forward(t, x)
	}
	target := t.Const(alloc.Int64, x.Shape[:2]...)
	return t.Op(tape.Op{
		In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, DType: alloc.Float32, Keep: []tape.Tensor{x, target},
		KeepOwn: []tape.Own{{Shape: target.Shape, DType: alloc.Float32}, {Shape: target.Shape, DType: alloc.Float32}},
	})
}

func (MSE) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (BCEWithLogits) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (L1) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{}, KeepOwn: []tape.Own{{Shape: x.Shape}}})
}

// judge notes the tensors that a loss reads: the loop's code has them as the model's output.
func judge(t *tape.Tape, xs ...tape.Tensor) {
	if t.Answer != nil {
		return
	}
	for _, x := range xs {
		t.Answer = append(t.Answer, t.Home(x.Storage()))
	}
}

// JudgeLast notes what the model's last layer reads, for a loss of the caller's own.
func JudgeLast(t *tape.Tape) {
	first := len(t.Ops) - 1
	for first > 0 && t.Ops[first-1].Row == t.Ops[first].Row {
		first--
	}
	if first >= 0 {
		t.Answer = []int32{t.Refs[t.Ops[first].In]}
	}
}

// against records a loss that keeps the input and a target of the same shape.
func against(t *tape.Tape, x tape.Tensor) tape.Tensor {
	judge(t, x)
	target := t.Const(x.DType, x.Shape...)
	return t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, target}})
}
