package estimate

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// tokens is the number of vectors in x.
func (l MoE) tokens(t *Tape, x Tensor) (int, error) {
	n, err := x.Shape[:len(x.Shape)-1].Elements()
	if err != nil || n > maxField {
		return 0, t.Errorf("input %v has too many tokens", x.Shape)
	}
	return int(n), nil
}

type experts struct{ MoE }

// Kind names the row.
func (l experts) Kind() string { return "Experts(" + strconv.Itoa(l.Experts) + ")" }

// Declare implements Layer.
func (l experts) Declare(d *Declaration) {
	d.expert(Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, 2 * l.FFN, l.Hidden}, Split: true})
	d.expert(Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.Hidden, l.FFN}, Split: true, apart: true})
	d.Layer("act_fn", l.Activation.layer(UseSiLU))
}

// Forward implements Layer.
func (l experts) Forward(t *Tape, x Tensor) (Tensor, error) {
	return l.visit(t, x, func(both Tensor) (Tensor, error) {
		parts, err := t.parts(both, l.FFN, l.FFN)
		if err != nil {
			return Tensor{}, err
		}
		gate, err := t.Call("act_fn", l.Activation.layer(UseSiLU), parts[0])
		if err != nil {
			return Tensor{}, err
		}
		return mul(t, gate, parts[1])
	}, false)
}

// expert declares the weights of experts, which are linear layers of their own to a quantized base.
func (d *Declaration) expert(p Param) {
	if d.quantizes() {
		d.cfg.quantized.Base.weight(d, p)
		return
	}
	d.Add(p)
}

// visit sorts the tokens by expert, runs the experts and puts the tokens back. gate
// makes the middle of what the first projection returns.
func (l MoE) visit(t *Tape, x Tensor, gate func(both Tensor) (Tensor, error), bias bool) (Tensor, error) {
	tokens, err := l.tokens(t, x)
	if err != nil {
		return Tensor{}, err
	}
	visits := tokens * or(l.TopK, 2)
	if visits > maxField {
		return Tensor{}, t.Errorf("input %v has too many tokens", x.Shape)
	}
	f := &Flow{t: t}
	order := Own{alloc.Shape{visits}, alloc.Int64}
	selected := f.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}, KeepOwn: []Own{order, order}})
	both := l.project(f, selected, Op{
		Shape: alloc.Shape{visits, 2 * l.FFN}, Split: t.cfg.sharding.Tensor > 1,
		KeepOwn: []Own{{alloc.Shape{l.Experts}, alloc.Int32}}, FLOPs: FLOPs(visits, 2*l.FFN, l.Hidden, 2),
	}, bias)
	middle := f.do(both.Shape, func() (Tensor, error) { return gate(both) })
	down := l.project(f, middle, Op{Shape: selected.Shape, Gather: true, apart: true, FLOPs: FLOPs(visits, l.Hidden, l.FFN, 2)}, bias)
	y := f.in(x.DType, l.gather(f, down, x.Shape, order))
	f.hold(selected, down)
	return y, f.err
}

// project multiplies each token by the weight of its expert and adds the expert's bias,
// of which a copy is made for each token.
func (l MoE) project(f *Flow, x Tensor, o Op, bias bool) Tensor {
	o.In, o.Params = []Tensor{x}, true
	o.Keep = f.t.forWeights(o.In)
	if f.err == nil && f.t.cfg.quantized.holds(f.t.declaredPath()) { // one expert after another
		f.err = f.t.cfg.quantized.product(f.t, &o, alloc.Shape{l.FFN, l.Hidden})
	}
	y := f.Op(o)
	if !bias {
		return y
	}
	copies := f.Op(Op{In: []Tensor{y}, Shape: y.Shape, Params: true})
	return f.Op(Op{In: []Tensor{y, copies}, Shape: y.Shape, PassGrad: true})
}

// gather weighs what the experts made by the scores and puts it back into the order of the tokens. It
// is in the wider type of both.
func (l MoE) gather(f *Flow, down Tensor, shape alloc.Shape, order Own) Tensor {
	scores := f.t.scores
	wide := down.DType
	if scores.DType.Bits() > wide.Bits() {
		wide = scores.DType
	}
	weighted := f.Op(Op{
		In: []Tensor{down, scores}, Shape: down.Shape, DType: wide, Keep: []Tensor{down}, KeepOwn: []Own{{alloc.Shape{down.Dim(0), 1}, scores.DType}},
	})
	sorted := f.Op(Op{In: []Tensor{weighted}, Shape: down.Shape, KeepOwn: []Own{order}})
	return f.Op(Op{In: []Tensor{sorted}, Shape: shape})
}
