package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// ossMoE is the mixture of gpt-oss: router and experts have biases, and the gate is
// up + 1 times gate * sigmoid(1.702 gate), of values that were bounded.
type ossMoE struct{ MoE }

// Kind names the row.
func (ossMoE) Kind() string { return "MoE" }

// Declare implements Layer.
func (l ossMoE) Declare(d *Declaration) {
	if l.check(d) {
		d.Layer("router", ossRouter(l))
		d.Layer("experts", ossExperts(l))
	}
}

// Forward implements Layer.
func (l ossMoE) Forward(t *Tape, x Tensor) (Tensor, error) {
	return l.route(t, x, "router", ossRouter(l), ossExperts(l))
}

type ossRouter struct{ MoE }

// Kind names the row.
func (ossRouter) Kind() string { return "Router" }

// Declare implements Layer.
func (l ossRouter) Declare(d *Declaration) {
	d.Param("weight", l.Experts, l.Hidden)
	d.Param("bias", l.Experts)
}

// Forward implements Layer: the softmax of the best scores of each token.
func (l ossRouter) Forward(t *Tape, x Tensor) (Tensor, error) {
	tokens, err := l.tokens(t, x)
	if err != nil {
		return Tensor{}, err
	}
	chosen := alloc.Shape{tokens, or(l.TopK, 2)}
	scores, err := t.Op(Op{
		In: []Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []Tensor{x},
		FLOPs: FLOPs(tokens, l.Experts, l.Hidden, 2),
	})
	if err != nil {
		return Tensor{}, err
	}
	best, err := t.Op(Op{In: []Tensor{scores}, Shape: chosen, KeepOwn: []Own{{chosen, alloc.Int64}}})
	if err != nil {
		return Tensor{}, err
	}
	return keepOutput(t, best)
}

type ossExperts struct{ MoE }

// Kind names the row.
func (l ossExperts) Kind() string { return experts(l).Kind() }

// Declare implements Layer.
func (l ossExperts) Declare(d *Declaration) {
	d.Add(Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, l.Hidden, 2 * l.FFN}, Split: true})
	d.Add(Param{Name: "gate_up_proj_bias", Shape: alloc.Shape{l.Experts, 2 * l.FFN}, Split: true})
	d.Add(Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.FFN, l.Hidden}, Split: true, apart: true})
	d.Add(Param{Name: "down_proj_bias", Shape: alloc.Shape{l.Experts, l.Hidden}, Split: true})
}

// Forward implements Layer.
func (l ossExperts) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := l.visit(t, x, func(both Tensor) (Tensor, error) {
		parts, err := t.slices(both, l.FFN, l.FFN)
		if err != nil {
			return Tensor{}, err
		}
		gate, err := keepInput(t, parts[0], false)
		if err != nil {
			return Tensor{}, err
		}
		up, err := keepInput(t, parts[1], false)
		if err != nil {
			return Tensor{}, err
		}
		glu, err := (QuickGELU{}).Forward(t, gate)
		if err == nil {
			up, err = t.Op(Op{In: []Tensor{up}, Shape: up.Shape, PassGrad: true})
		}
		if err != nil {
			return Tensor{}, err
		}
		t.hold(gate)
		return mul(t, up, glu)
	}, true)
	if err == nil {
		tokens, _ := l.tokens(t, x) // which visit has checked
		t.rowOutput = alloc.Shape{tokens, l.Hidden}
	}
	return y, err
}
