package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// MoE is a mixture of gated MLPs: a router sends each token to TopK of the
// Experts. What it keeps follows the grouped kernels of transformers.
type MoE struct {
	Hidden, FFN   int
	Experts, TopK int
	Shared        int // width of a gated MLP that every token visits besides; 0 for none
	Router        Router
	Groups        int        // of experts, among which a SigmoidRouter chooses by their best two; 0 for none
	TopGroups     int        // groups that a token visits
	Unscaled      bool       // the weights of a token's experts are not divided by their sum
	SharedGate    bool       // a gate weighs what Shared makes, as in Qwen2-MoE
	Activation    Activation // the zero value is SiLU
}

// Router is how a mixture chooses the experts of a token.
type Router uint8

// The routers.
const (
	SoftmaxRouter Router = iota // the most probable, as Mixtral does, in float32
	RoundedRouter               // the same rounded to the type of activations, as Qwen3 does
	SigmoidRouter               // the best of groups by a sigmoid and a bias, in float32, as DeepSeek V3 does
	WideRouter                  // SoftmaxRouter with inputs and weights in float32, as DeepSeek V2 does
	sparseMixer                 // the best one by one, as Phi MoE does
	loneSigmoid                 // the best by a sigmoid and a bias, as MiniMax M2 does
	topRouter                   // the best, and a softmax of these alone, as Granite MoE does
)

// Declare implements Layer.
func (l MoE) Declare(d *Declaration) {
	if !l.check(d) {
		return
	}
	gate := "gate"
	if l.Router == sparseMixer {
		gate = "router"
	}
	d.Layer(gate, router{l})
	d.Layer("experts", experts{l})
	switch {
	case l.Shared > 0 && l.SharedGate:
		d.Layer("shared_expert", l.shared())
		d.Layer("shared_expert_gate", l.sharedGate())
	case l.Shared > 0:
		d.Layer("shared_experts", l.shared())
	}
}

func (l MoE) sharedGate() Layer { return Linear{In: l.Hidden, Out: 1, NoBias: true} }

// check reports what is wrong with the settings.
func (l MoE) check(d *Declaration) bool {
	top := or(l.TopK, 2)
	if !d.wantAll(setting{"Hidden", l.Hidden, 1}, setting{"FFN", l.FFN, 1}, setting{"Experts", l.Experts, 1}, setting{"TopK", top, 1},
		setting{"Shared", l.Shared, 0}, setting{"Groups", l.Groups, 0}, setting{"TopGroups", l.TopGroups, 0}) {
		return false
	}
	switch {
	case top > l.Experts:
		d.Errorf("TopK is %d of %d Experts", top, l.Experts)
	case l.Router > topRouter:
		d.Errorf("Router is %d: want one of the constants, from SoftmaxRouter to WideRouter", l.Router)
	}
	return d.err == nil
}

func (l MoE) shared() Layer {
	return GatedMLP{Hidden: l.Hidden, FFN: l.Shared, Activation: l.Activation}
}

// Forward implements Layer.
func (l MoE) Forward(t *Tape, x Tensor) (Tensor, error) {
	if l.Router == sparseMixer {
		return l.route(t, x, "router", router{l}, experts{l})
	}
	if l.Shared > 0 && l.SharedGate {
		return l.gated(t, x)
	}
	y, err := l.route(t, x, "gate", router{l}, experts{l})
	if err != nil || l.Shared == 0 {
		return y, err
	}
	shared, err := t.Call("shared_experts", l.shared(), x)
	if err != nil {
		return Tensor{}, err
	}
	return add(t, y, shared)
}

// gated adds what the shared MLP makes, weighed by its gate.
func (l MoE) gated(t *Tape, x Tensor) (Tensor, error) {
	shared, err := t.Call("shared_expert", l.shared(), x)
	if err != nil {
		return Tensor{}, err
	}
	y, err := l.route(t, x, "gate", router{l}, experts{l})
	if err != nil {
		return Tensor{}, err
	}
	gate, err := t.Call("shared_expert_gate", l.sharedGate(), x)
	if err == nil {
		gate, err = keepOutput(t, gate)
	}
	if err == nil {
		shared, err = mul(t, shared, gate)
	}
	if err != nil {
		return Tensor{}, err
	}
	return add(t, y, shared)
}

// route calls the router, under its name, and the experts that it chooses.
func (l MoE) route(t *Tape, x Tensor, name string, router, experts Layer) (Tensor, error) {
	if err := t.width(x, -1, l.Hidden, "features"); err != nil {
		return Tensor{}, err
	}
	scores, err := t.Call(name, router, x)
	if err != nil {
		return Tensor{}, err
	}
	t.scores = scores
	if t.cfg.lora == nil {
		t.unmeasured |= mixtures
	}
	return t.Call("experts", experts, x)
}

type router struct{ MoE }

// Kind names the row.
func (router) Kind() string { return "Router" }

// Declare implements Layer.
func (l router) Declare(d *Declaration) {
	d.Param("weight", l.Experts, l.Hidden)
	if l.Router == SigmoidRouter || l.Router == loneSigmoid {
		d.Buffer("e_score_correction_bias", l.Experts)
	}
}

// Forward implements Layer: the weights of each token's experts.
func (l router) Forward(t *Tape, x Tensor) (Tensor, error) {
	tokens, err := l.tokens(t, x)
	if err != nil {
		return Tensor{}, err
	}
	top := or(l.TopK, 2)
	switch l.Router {
	case SigmoidRouter, loneSigmoid:
		return l.sigmoid(t, x, tokens, top)
	case topRouter:
		return l.top(t, x, tokens, top)
	case sparseMixer:
		return l.mix(t, x, tokens, top)
	}
	logits, err := t.Op(l.look(x, tokens, l.Router == WideRouter))
	if err != nil {
		return Tensor{}, err
	}
	probs, err := t.Op(Op{In: []Tensor{logits}, Shape: logits.Shape, DType: alloc.Float32, KeepOutput: true})
	if err != nil {
		return Tensor{}, err
	}
	chosen := alloc.Shape{tokens, top}
	best, err := t.Op(Op{In: []Tensor{probs}, Shape: chosen, KeepOwn: []Own{{chosen, alloc.Int64}}})
	if err != nil {
		return Tensor{}, err
	}
	if !l.Unscaled {
		best, err = t.Op(Op{ // divided by their sum, in place
			In: []Tensor{best}, Shape: chosen, InPlace: true, KeepOwn: []Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}},
		})
	}
	if err != nil || l.Router != RoundedRouter || x.DType == best.DType {
		return best, err
	}
	return t.Op(Op{In: []Tensor{best}, Shape: chosen, DType: x.DType})
}

// look makes the scores; in float32, to which input and weight are copied, if they are wide.
func (l router) look(x Tensor, tokens int, wide bool) Op {
	o := Op{
		In: []Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []Tensor{x},
		FLOPs: FLOPs(tokens, l.Experts, l.Hidden, 2),
	}
	if wide && x.DType != alloc.Float32 {
		o.DType = alloc.Float32
		o.Keep, o.KeepOwn = nil, []Own{{x.Shape, alloc.Float32}, {alloc.Shape{l.Experts, l.Hidden}, alloc.Float32}}
	}
	return o
}

// mix chooses the experts one by one: a softmax of those that are near the best is
// multiplied by a mask.
func (l router) mix(t *Tape, x Tensor, tokens, top int) (Tensor, error) {
	x, err := t.Op(Op{In: []Tensor{x}, Shape: x.Shape}) // the noise of training
	if err != nil {
		return Tensor{}, err
	}
	s, err := t.Op(l.look(x, tokens, false))
	if err != nil {
		return Tensor{}, err
	}
	one := alloc.Shape{tokens, 1}
	parts := make([]Tensor, top)
	for i := range parts {
		masked, err := t.Op(Op{In: []Tensor{s}, Shape: s.Shape, KeepOwn: []Own{{s.Shape, alloc.Bool}}})
		if err == nil {
			masked, err = keepOutput(t, masked)
		}
		if err == nil {
			parts[i], err = t.Op(Op{In: []Tensor{masked}, Shape: one, KeepOwn: []Own{{one, alloc.Int64}, {one, alloc.Int64}, {Shape: one}}})
		}
		if err != nil {
			return Tensor{}, err
		}
	}
	return Cat(t, 1, parts...)
}

// sigmoid computes in float32.
func (l router) sigmoid(t *Tape, x Tensor, tokens, top int) (Tensor, error) {
	scores, chosen := alloc.Shape{tokens, l.Experts}, alloc.Shape{tokens, top}
	s, err := t.Op(l.look(x, tokens, l.Router == SigmoidRouter))
	if err == nil {
		s, err = t.Op(Op{In: []Tensor{s}, Shape: scores, DType: alloc.Float32, KeepOutput: true})
	}
	choice := []Own{{chosen, alloc.Int64}}
	if l.Router == SigmoidRouter { // the choice of groups leaves the numbers of the best and a mask
		groups := alloc.Shape{tokens, 2*l.Groups + l.TopGroups}
		choice = append(choice, Own{scores, alloc.Bool}, Own{groups, alloc.Int64})
	}
	if err == nil {
		s, err = t.Op(Op{In: []Tensor{s}, Shape: chosen, KeepOwn: choice})
	}
	if err != nil {
		return Tensor{}, err
	}
	if !l.Unscaled {
		s, err = t.Op(Op{In: []Tensor{s}, Shape: chosen, InPlace: true, KeepOwn: []Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}}})
	}
	if err != nil || l.Router == loneSigmoid {
		return s, err
	}
	return t.Op(Op{In: []Tensor{s}, Shape: chosen})
}

// top is a softmax of the best in float32.
func (l router) top(t *Tape, x Tensor, tokens, top int) (Tensor, error) {
	chosen := alloc.Shape{tokens, top}
	s, err := t.Op(l.look(x, tokens, false))
	if err == nil {
		s, err = t.Op(Op{In: []Tensor{s}, Shape: chosen, DType: alloc.Float32, KeepOwn: []Own{{chosen, alloc.Int64}}})
	}
	if err == nil {
		s, err = keepOutput(t, s)
	}
	if err != nil || s.DType == x.DType {
		return s, err
	}
	return t.Op(Op{In: []Tensor{s}, Shape: chosen, DType: x.DType})
}
