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
	if !l.Check(d) {
		return
	}
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

// Check ends the declaration with an error if the settings are wrong, and reports whether they are
// right.
func (l MoE) Check(d *tape.Declaration) bool {
	top := setting.Or(l.TopK, 2)
	if !d.WantAll(tape.Setting{Name: "Hidden", Value: l.Hidden, Least: 1}, tape.Setting{Name: "FFN", Value: l.FFN, Least: 1}, tape.Setting{Name: "Experts", Value: l.Experts, Least: 1}, tape.Setting{Name: "TopK", Value: top, Least: 1},
		tape.Setting{Name: "Shared", Value: l.Shared, Least: 0}, tape.Setting{Name: "Groups", Value: l.Groups, Least: 0}, tape.Setting{Name: "TopGroups", Value: l.TopGroups, Least: 0}) {
		return false
	}
	switch {
	case top > l.Experts:
		d.Errorf("TopK is %d of %d Experts", top, l.Experts)
	case l.Router > TopRouter:
		d.Errorf("Router is %d: want one of the constants, from SoftmaxRouter to WideRouter", l.Router)
	}
	return d.Err == nil
}

func (l MoE) SharedExpert() tape.Layer {
	return GatedMLP{Hidden: l.Hidden, FFN: l.Shared, Activation: l.Activation}
}

func (l MoE) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if l.Router == SparseMixer {
		return l.Route(t, x, "router", router{l}, Experts{l})
	}
	if l.Shared > 0 && l.SharedGate {
		return l.gated(t, x)
	}
	y, err := l.Route(t, x, "gate", router{l}, Experts{l})
	if err != nil || l.Shared == 0 {
		return y, err
	}
	shared, err := t.Call("shared_experts", l.SharedExpert(), x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Add(t, y, shared)
}

// gated adds the output of the shared MLP, scaled by its gate.
func (l MoE) gated(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	shared, err := t.Call("shared_expert", l.SharedExpert(), x)
	if err != nil {
		return tape.Tensor{}, err
	}
	y, err := l.Route(t, x, "gate", router{l}, Experts{l})
	if err != nil {
		return tape.Tensor{}, err
	}
	gate, err := t.Call("shared_expert_gate", l.sharedGate(), x)
	if err == nil {
		gate, err = KeepOutput(t, gate)
	}
	if err == nil {
		shared, err = tape.Mul(t, shared, gate)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Add(t, y, shared)
}

// Route calls the router, under its name, and then the experts.
func (l MoE) Route(t *tape.Tape, x tape.Tensor, name string, router, experts tape.Layer) (tape.Tensor, error) {
	if err := t.Width(x, -1, l.Hidden, "features"); err != nil {
		return tape.Tensor{}, err
	}
	scores, err := t.Call(name, router, x)
	if err != nil {
		return tape.Tensor{}, err
	}
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

// Kind returns what the rows show as the kind of layer.
func (router) Kind() string { return "Router" }

func (l router) Declare(d *tape.Declaration) {
	d.Param("weight", l.Experts, l.Hidden)
	if l.Router == SigmoidRouter || l.Router == LoneSigmoid {
		d.Buffer("e_score_correction_bias", l.Experts)
	}
}

// Forward records the scores of each token's experts.
func (l router) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	tokens, err := l.Tokens(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	top := setting.Or(l.TopK, 2)
	switch l.Router {
	case SigmoidRouter, LoneSigmoid:
		return l.sigmoid(t, x, tokens, top)
	case TopRouter:
		return l.top(t, x, tokens, top)
	case SparseMixer:
		return l.mix(t, x, tokens, top)
	}
	logits, err := t.Op(l.look(x, tokens, l.Router == WideRouter))
	if err != nil {
		return tape.Tensor{}, err
	}
	probs, err := t.Op(tape.Op{In: []tape.Tensor{logits}, Shape: logits.Shape, DType: alloc.Float32, KeepOutput: true})
	if err != nil {
		return tape.Tensor{}, err
	}
	chosen := alloc.Shape{tokens, top}
	best, err := t.Op(tape.Op{In: []tape.Tensor{probs}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	if err != nil {
		return tape.Tensor{}, err
	}
	if !l.Unscaled {
		best, err = t.Op(tape.Op{ // divided by their sum, in place
			In: []tape.Tensor{best}, Shape: chosen, InPlace: true, KeepOwn: []tape.Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}},
		})
	}
	if err != nil || l.Router != RoundedRouter || x.DType == best.DType {
		return best, err
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
func (l router) mix(t *tape.Tape, x tape.Tensor, tokens, top int) (tape.Tensor, error) {
	x, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape}) // the noise of training
	if err != nil {
		return tape.Tensor{}, err
	}
	s, err := t.Op(l.look(x, tokens, false))
	if err != nil {
		return tape.Tensor{}, err
	}
	one := alloc.Shape{tokens, 1}
	parts := make([]tape.Tensor, top)
	for i := range parts {
		masked, err := t.Op(tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOwn: []tape.Own{{Shape: s.Shape, DType: alloc.Bool}}})
		if err == nil {
			masked, err = KeepOutput(t, masked)
		}
		if err == nil {
			parts[i], err = t.Op(tape.Op{In: []tape.Tensor{masked}, Shape: one, KeepOwn: []tape.Own{{Shape: one, DType: alloc.Int64}, {Shape: one, DType: alloc.Int64}, {Shape: one}}})
		}
		if err != nil {
			return tape.Tensor{}, err
		}
	}
	return tape.Cat(t, 1, parts...)
}

// sigmoid chooses experts by a sigmoid, in float32.
func (l router) sigmoid(t *tape.Tape, x tape.Tensor, tokens, top int) (tape.Tensor, error) {
	scores, chosen := alloc.Shape{tokens, l.Experts}, alloc.Shape{tokens, top}
	s, err := t.Op(l.look(x, tokens, l.Router == SigmoidRouter))
	if err == nil {
		s, err = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores, DType: alloc.Float32, KeepOutput: true})
	}
	choice := []tape.Own{{Shape: chosen, DType: alloc.Int64}}
	if l.Router == SigmoidRouter { // the choice of groups leaves the indices of the best and a mask
		groups := alloc.Shape{tokens, 2*l.Groups + l.TopGroups}
		choice = append(choice, tape.Own{Shape: scores, DType: alloc.Bool}, tape.Own{Shape: groups, DType: alloc.Int64})
	}
	if err == nil {
		s, err = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, KeepOwn: choice})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	if !l.Unscaled {
		s, err = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, InPlace: true, KeepOwn: []tape.Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}}})
	}
	if err != nil || l.Router == LoneSigmoid {
		return s, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen})
}

// top makes a softmax over the best scores, in float32.
func (l router) top(t *tape.Tape, x tape.Tensor, tokens, top int) (tape.Tensor, error) {
	chosen := alloc.Shape{tokens, top}
	s, err := t.Op(l.look(x, tokens, false))
	if err == nil {
		s, err = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: alloc.Float32, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	}
	if err == nil {
		s, err = KeepOutput(t, s)
	}
	if err != nil || s.DType == x.DType {
		return s, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: x.DType})
}
