package layer

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Tokens returns the number of vectors in x.
func (l MoE) Tokens(t *tape.Tape, x tape.Tensor) int {
	n, err := x.Shape[:len(x.Shape)-1].Elements()
	if err != nil || n > setting.MaxField {
		t.Failf("input %v has too many tokens", x.Shape)
	}
	return int(n)
}

type Experts struct{ MoE }

func (l Experts) Kind() string { return "Experts(" + strconv.Itoa(l.Experts) + ")" }

func (l Experts) Declare(d *tape.Declaration) {
	declareExpert(d, tape.Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, 2 * l.FFN, l.Hidden}, Split: true})
	declareExpert(d, tape.Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.Hidden, l.FFN}, Split: true, Apart: true})
	d.Layer("act_fn", l.Activation.Layer(UseSiLU))
}

func (l Experts) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.Visit(t, x, func(both tape.Tensor) tape.Tensor {
		parts := t.Parts(both, l.FFN, l.FFN)
		gate := t.Call("act_fn", l.Activation.Layer(UseSiLU), parts[0])
		return t.Mul(gate, parts[1])
	}, false)
}

// declareExpert declares a weight of experts. A quantized base treats it as linear layers.
func declareExpert(d *tape.Declaration, p tape.Param) {
	if d.Quantizes() {
		d.AddQuantized(d.Cfg.Quantized.Base, p)
		return
	}
	d.Add(p)
}

// Visit sorts the tokens by expert, runs the experts and puts the tokens back into order. gate
// computes the middle of the MLP from the first projection.
func (l MoE) Visit(t *tape.Tape, x tape.Tensor, gate func(both tape.Tensor) tape.Tensor, bias bool) tape.Tensor {
	tokens := l.Tokens(t, x)
	visits := tokens * setting.Or(l.TopK, 2)
	if visits > setting.MaxField {
		t.Failf("input %v has too many tokens", x.Shape)
	}
	order := tape.Own{Shape: alloc.Shape{visits}, DType: alloc.Int64}
	selected := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}, KeepOwn: []tape.Own{order, order}})
	both := l.project(t, selected, tape.Op{
		Shape: alloc.Shape{visits, 2 * l.FFN}, Split: t.Cfg.Sharding.Tensor > 1,
		KeepOwn: []tape.Own{{Shape: alloc.Shape{l.Experts}, DType: alloc.Int32}}, FLOPs: setting.FLOPs(visits, 2*l.FFN, l.Hidden, 2),
	}, bias)
	middle := gate(both)
	down := l.project(t, middle, tape.Op{Shape: selected.Shape, Gather: true, Apart: true, FLOPs: setting.FLOPs(visits, l.Hidden, l.FFN, 2)}, bias)
	y := t.In(x.DType, l.gather(t, down, x.Shape, order))
	t.Hold(selected, down)
	return y
}

// project multiplies each token by the weight of its expert, and adds a copy of the expert's bias
// to each token.
func (l MoE) project(t *tape.Tape, x tape.Tensor, o tape.Op, bias bool) tape.Tensor {
	o.In, o.Params = []tape.Tensor{x}, true
	o.Keep = t.ForWeights(o.In)
	if t.Cfg.Quantized.Holds(t.DeclaredPath()) { // one expert after another
		t.QuantizedProduct(&o, alloc.Shape{l.FFN, l.Hidden})
	}
	y := t.Op(o)
	if !bias {
		return y
	}
	copies := t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, Params: true})
	return t.Op(tape.Op{In: []tape.Tensor{y, copies}, Shape: y.Shape, PassGrad: true})
}

// gather scales the experts' output by the scores and puts it back into the order of the tokens, in
// the wider of both types.
func (l MoE) gather(t *tape.Tape, down tape.Tensor, shape alloc.Shape, order tape.Own) tape.Tensor {
	scores := *routed.Of(t)
	wide := down.DType
	if scores.DType.Bits() > wide.Bits() {
		wide = scores.DType
	}
	weighted := t.Op(tape.Op{
		In: []tape.Tensor{down, scores}, Shape: down.Shape, DType: wide, Keep: []tape.Tensor{down}, KeepOwn: []tape.Own{{Shape: alloc.Shape{down.Dim(0), 1}, DType: scores.DType}},
	})
	sorted := t.Op(tape.Op{In: []tape.Tensor{weighted}, Shape: down.Shape, KeepOwn: []tape.Own{order}})
	return t.Op(tape.Op{In: []tape.Tensor{sorted}, Shape: shape})
}
