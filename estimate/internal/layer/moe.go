package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MoE is a mixture of gated MLPs: a router sends each token to TopK of the
// Experts. What it keeps follows the grouped kernels of transformers.
type MoE struct {
	Hidden, FFN   int
	Experts, TopK int
	Shared        int // width of a gated MLP that every token passes besides its experts; 0 means none
	Router        Router
	Groups        int        // groups of experts, from which a SigmoidRouter chooses by the best two experts of each; 0 means none
	TopGroups     int        // number of groups that a token may use
	Unscaled      bool       // the weights of a token's experts are not divided by their sum
	SharedGate    bool       // a gate scales the output of Shared, as in Qwen2-MoE
	Activation    Activation // the zero value is SiLU
}

// Router says how a mixture chooses the experts of a token.
type Router uint8

// The routers.
const (
	SoftmaxRouter Router = iota // the most probable, as Mixtral does, in float32
	RoundedRouter               // the same, rounded to the type of activations, as Qwen3 does
	SigmoidRouter               // the best experts of the best groups, by a sigmoid and a bias in float32, as DeepSeek V3 does
	WideRouter                  // SoftmaxRouter, with inputs and weights cast to float32, as DeepSeek V2 does
	SparseMixer                 // the best experts one after another, as Phi MoE does
	LoneSigmoid                 // the best experts of all, by a sigmoid and a bias, as MiniMax M2 does
	TopRouter                   // the best experts, and a softmax over only these, as Granite MoE does
)

func (l MoE) Declare(d *tape.Declaration) {
	l.Check(d)
	gate := "gate"
	if l.Router == SparseMixer {
		gate = "router"
	}
	d.Layer(gate, router{l})
	d.Layer("experts", Experts{l})
	switch {
	case l.Shared > 0 && l.SharedGate:
		d.Layer("shared_expert", l.SharedExpert())
		d.Layer("shared_expert_gate", l.sharedGate())
	case l.Shared > 0:
		d.Layer("shared_experts", l.SharedExpert())
	}
}

func (l MoE) sharedGate() tape.Layer { return Linear{In: l.Hidden, Out: 1, NoBias: true} }

// Check fails if the settings are wrong.
func (l MoE) Check(d *tape.Declaration) {
	top := setting.Or(l.TopK, 2)
	d.Want("Hidden", l.Hidden, 1)
	d.Want("FFN", l.FFN, 1)
	d.Want("Experts", l.Experts, 1)
	d.Want("TopK", top, 1)
	d.Want("Shared", l.Shared, 0)
	d.Want("Groups", l.Groups, 0)
	d.Want("TopGroups", l.TopGroups, 0)
	switch {
	case top > l.Experts:
		d.Failf("TopK is %d of %d Experts", top, l.Experts)
	case l.Router > TopRouter:
		d.Failf("Router is %d: want one of the constants, from SoftmaxRouter to WideRouter", l.Router)
	}
}

func (l MoE) SharedExpert() tape.Layer {
	return GatedMLP{Hidden: l.Hidden, FFN: l.Shared, Activation: l.Activation}
}

func (l MoE) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if l.Router == SparseMixer {
		return l.Route(t, x, "router", router{l}, Experts{l})
	}
	if l.Shared > 0 && l.SharedGate {
		return l.gated(t, x)
	}
	y := l.Route(t, x, "gate", router{l}, Experts{l})
	if l.Shared == 0 {
		return y
	}
	shared := t.Call("shared_experts", l.SharedExpert(), x)
	return t.Sum(y, shared)
}

// gated adds the output of the shared MLP, scaled by its gate.
func (l MoE) gated(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shared := t.Call("shared_expert", l.SharedExpert(), x)
	y := l.Route(t, x, "gate", router{l}, Experts{l})
	gate := t.Call("shared_expert_gate", l.sharedGate(), x)
	gate = KeepOutput(t, gate)
	shared = t.Mul(shared, gate)
	return t.Sum(y, shared)
}

// Route calls the router, under its name, and then the experts.
func (l MoE) Route(t *tape.Tape, x tape.Tensor, name string, router, experts tape.Layer) tape.Tensor {
	t.Width(x, -1, l.Hidden, "features")
	scores := t.Call(name, router, x)
	Routed(t, scores)
	return t.Call("experts", experts, x)
}

// Routed notes the router's scores, by which the experts that are called next scale their output.
func Routed(t *tape.Tape, scores tape.Tensor) {
	*routed.Of(t) = scores
	Ran.Of(t).Routed = true
	if t.Cfg.Lora == nil {
		Ran.Of(t).Unmeasured |= Mixtures
	}
}

// routed holds the scores of the last router that ran.
var routed tape.Slot[tape.Tensor]

type router struct{ MoE }

func (router) Kind() string { return "Router" }

func (l router) Declare(d *tape.Declaration) {
	d.Param("weight", l.Experts, l.Hidden)
	if l.Router == SigmoidRouter || l.Router == LoneSigmoid {
		d.Buffer("e_score_correction_bias", l.Experts)
	}
}

// Forward records the scores of each token's experts.
func (l router) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	tokens := l.Tokens(t, x)
	top := setting.Or(l.TopK, 2)
	switch l.Router {
	case SigmoidRouter, LoneSigmoid:
		return l.sigmoid(t, x, tokens, top)
	case TopRouter:
		return l.top(t, x, tokens, top)
	case SparseMixer:
		return l.mix(t, x, tokens, top)
	}
	logits := t.Op(l.look(x, tokens, l.Router == WideRouter))
	probs := t.Op(tape.Op{In: []tape.Tensor{logits}, Shape: logits.Shape, DType: alloc.Float32, KeepOutput: true})
	chosen := alloc.Shape{tokens, top}
	best := t.Op(tape.Op{In: []tape.Tensor{probs}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	if !l.Unscaled {
		best = t.Op(tape.Op{ // divided by their sum, in place
			In: []tape.Tensor{best}, Shape: chosen, InPlace: true, KeepOwn: []tape.Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}},
		})
	}
	if l.Router != RoundedRouter || x.DType == best.DType {
		return best
	}
	return t.Op(tape.Op{In: []tape.Tensor{best}, Shape: chosen, DType: x.DType})
}

// look makes the scores. If wide, input and weight are cast to float32 for it.
func (l router) look(x tape.Tensor, tokens int, wide bool) tape.Op {
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []tape.Tensor{x},
		FLOPs: setting.FLOPs(tokens, l.Experts, l.Hidden, 2),
	}
	if wide && x.DType != alloc.Float32 {
		o.DType = alloc.Float32
		o.Keep, o.KeepOwn = nil, []tape.Own{{Shape: x.Shape, DType: alloc.Float32}, {Shape: alloc.Shape{l.Experts, l.Hidden}, DType: alloc.Float32}}
	}
	return o
}

// mix chooses the experts one after another: the softmax of the scores near the best is multiplied
// by a mask.
func (l router) mix(t *tape.Tape, x tape.Tensor, tokens, top int) tape.Tensor {
	x = t.Scale(x) // the noise of training
	s := t.Op(l.look(x, tokens, false))
	one := alloc.Shape{tokens, 1}
	parts := make([]tape.Tensor, top)
	for i := range parts {
		masked := t.Op(tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOwn: []tape.Own{{Shape: s.Shape, DType: alloc.Bool}}})
		masked = KeepOutput(t, masked)
		parts[i] = t.Op(tape.Op{In: []tape.Tensor{masked}, Shape: one, KeepOwn: []tape.Own{{Shape: one, DType: alloc.Int64}, {Shape: one, DType: alloc.Int64}, {Shape: one}}})
	}
	return t.Cat(1, parts...)
}

// sigmoid chooses experts by a sigmoid, in float32.
func (l router) sigmoid(t *tape.Tape, x tape.Tensor, tokens, top int) tape.Tensor {
	scores, chosen := alloc.Shape{tokens, l.Experts}, alloc.Shape{tokens, top}
	s := t.Op(l.look(x, tokens, l.Router == SigmoidRouter))
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores, DType: alloc.Float32, KeepOutput: true})
	choice := []tape.Own{{Shape: chosen, DType: alloc.Int64}}
	if l.Router == SigmoidRouter { // the choice of groups leaves the indices of the best and a mask
		groups := alloc.Shape{tokens, 2*l.Groups + l.TopGroups}
		choice = append(choice, tape.Own{Shape: scores, DType: alloc.Bool}, tape.Own{Shape: groups, DType: alloc.Int64})
	}
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, KeepOwn: choice})
	if !l.Unscaled {
		s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, InPlace: true, KeepOwn: []tape.Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}}})
	}
	if l.Router == LoneSigmoid {
		return s
	}
	return t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen})
}

// top makes a softmax over the best scores, in float32.
func (l router) top(t *tape.Tape, x tape.Tensor, tokens, top int) tape.Tensor {
	chosen := alloc.Shape{tokens, top}
	s := t.Op(l.look(x, tokens, false))
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: alloc.Float32, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	s = KeepOutput(t, s)
	if s.DType == x.DType {
		return s
	}
	return t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: x.DType})
}
