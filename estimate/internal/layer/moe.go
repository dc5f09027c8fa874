package layer

import (
	"strconv"

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
	Ungated       bool       // the experts have no gate, as in Nemotron-H
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
	WideRouter                  // SoftmaxRouter, with inputs cast to float32, as DeepSeek V2 does
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

// Gate returns the router.
func (l MoE) Gate() tape.Layer { return router{l} }

type router struct{ MoE }

func (router) Kind() string { return "Router" }

func (l router) Declare(d *tape.Declaration) {
	weight := tape.Param{Name: "weight", Shape: alloc.Shape{l.Experts, l.Hidden}}
	if l.wide() {
		weight.DType = alloc.Float32
	}
	d.Add(weight)
	if l.Router == SigmoidRouter || l.Router == LoneSigmoid {
		d.Add(tape.Param{Name: "e_score_correction_bias", Shape: alloc.Shape{l.Experts}, DType: weight.DType, Buffer: true})
	}
	AdaptParam(d, "weight", 1, l.Experts, l.Hidden)
	if l.Router == SparseMixer && d.Adapts() { // a Linear, as others are not
		l.linear().declareAdapters(d)
	}
}

// wide reports whether the weight is float32 whatever the model's type, and the input is cast to it.
func (l router) wide() bool { return l.Router == WideRouter || l.Router == SigmoidRouter }

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
	logits := t.Op(l.look(t, x, tokens))
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

func (l router) linear() Linear { return Linear{In: l.Hidden, Out: l.Experts, NoBias: true} }

// look makes the scores.
func (l router) look(t *tape.Tape, x tape.Tensor, tokens int) tape.Op {
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []tape.Tensor{x},
		FLOPs: setting.FLOPs(tokens, l.Experts, l.Hidden, 2),
	}
	if l.wide() && x.DType != alloc.Float32 {
		o.DType = alloc.Float32
		o.Keep, o.KeepOwn = nil, []tape.Own{{Shape: x.Shape}}
	}
	AddParam(t, &o, "weight", 1, l.Experts, l.Hidden)
	return o
}

// mix chooses the experts one after another: the softmax of the scores near the best is multiplied
// by a mask.
func (l router) mix(t *tape.Tape, x tape.Tensor, tokens, top int) tape.Tensor {
	x = t.Scale(x) // the noise of training
	s := t.Op(l.look(t, x, tokens))
	if t.Decl.Adapted(t.DeclaredPath()) {
		s = addAdapters(t.Cfg.Lora, t, l.linear(), x, s)
	}
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
	s := t.Op(l.look(t, x, tokens))
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
	s := t.Op(l.look(t, x, tokens))
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: alloc.Float32, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	s = KeepOutput(t, s)
	if s.DType == x.DType {
		return s
	}
	return t.Op(tape.Op{In: []tape.Tensor{s}, Shape: chosen, DType: x.DType})
}

// Tokens returns the number of vectors in x.
func (l MoE) Tokens(t *tape.Tape, x tape.Tensor) int {
	n, err := x.Shape[:len(x.Shape)-1].Elements()
	if err != nil || n > setting.MaxField {
		t.Failf("input %v has too many tokens", x.Shape)
	}
	return int(n)
}

type Experts struct{ MoE }

// upName is the name of the weight of the first projection.
func (l MoE) upName() string {
	if l.Ungated {
		return "up_proj"
	}
	return "gate_up_proj"
}

func (l Experts) Kind() string { return "Experts(" + strconv.Itoa(l.Experts) + ")" }

func (l Experts) Declare(d *tape.Declaration) {
	declareExpert(d, tape.Param{Name: l.upName(), Shape: alloc.Shape{l.Experts, l.up(), l.Hidden}, Split: true})
	declareExpert(d, tape.Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.Hidden, l.FFN}, Split: true, Apart: true})
	d.Layer("act_fn", l.Activation.Layer(UseSiLU))
}

// up returns the width of the first projection.
func (l MoE) up() int {
	if l.Ungated {
		return l.FFN
	}
	return 2 * l.FFN
}

func (l Experts) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.Visit(t, x, func(both tape.Tensor) tape.Tensor {
		if l.Ungated {
			return t.Call("act_fn", l.Activation.Layer(UseSiLU), both)
		}
		parts := t.Parts(both, l.FFN, l.FFN)
		gate := t.Call("act_fn", l.Activation.Layer(UseSiLU), parts[0])
		return t.Mul(gate, parts[1])
	}, false)
}

// declareExpert declares a weight of experts. A quantized base treats it as linear layers, unless PEFT
// adapts a parameter of these experts.
func declareExpert(d *tape.Declaration, p tape.Param) {
	if !d.LeavesWide() && d.Quantizes() {
		AddQuantized(d, p)
		return
	}
	p.Expert = true
	d.Add(p)
	AdaptParam(d, p.Name, p.Shape[0], p.Shape[1], p.Shape[2])
}

// Visit sorts the tokens by expert, runs the experts and puts the tokens back into order. gate
// computes the middle of the MLP from the first projection.
func (l MoE) Visit(t *tape.Tape, x tape.Tensor, gate func(both tape.Tensor) tape.Tensor, bias bool) tape.Tensor {
	in := x
	x = tape.Gathered(t, x)
	tokens := l.Tokens(t, x)
	visits := tokens * setting.Or(l.TopK, 2)
	if visits > setting.MaxField {
		t.Failf("input %v has too many tokens", x.Shape)
	}
	order := tape.Own{Shape: alloc.Shape{visits}, DType: alloc.Int64}
	selected := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}, KeepOwn: []tape.Own{order, order}})
	before := len(t.Storages)
	selected = l.exchange(t, selected)
	both := l.project(t, selected, l.upName(), tape.Op{
		Shape: alloc.Shape{visits, l.up()}, Split: t.Cfg.Sharding.Tensor > 1 && t.Cfg.Sharding.Experts <= 1,
		KeepOwn: []tape.Own{{Shape: alloc.Shape{l.Experts}, DType: alloc.Int32}}, FLOPs: setting.FLOPs(visits, l.up(), l.Hidden, 2),
	}, bias)
	middle := gate(both)
	down := l.project(t, middle, "down_proj", tape.Op{Shape: selected.Shape, Gather: true, Whole: true, Apart: true, FLOPs: setting.FLOPs(visits, l.Hidden, l.FFN, 2)}, bias)
	routedTensors(t, before)
	down = l.exchange(t, down)
	y := t.In(in.DType, l.gather(t, down, in.Shape, order))
	t.Hold(selected, down)
	return y
}

// exchange sends each token to the device that has its expert, or back, where devices share experts: as many come as go, if
// the experts are used equally.
func (l MoE) exchange(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.Sharding.Experts <= 1 {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Whole: true})
}

// routedTensors notes the sizes of the tensors that were made since, of which the router decides how large they are.
func routedTensors(t *tape.Tape, since int) {
	n := alloc.Bytes(0)
	for i := since; i < len(t.Storages); i++ {
		if s := &t.Storages[i]; !s.Part {
			n += alloc.Bytes(s.Bytes)
		}
	}
	if ran := Ran.Of(t); t.Inside() {
		ran.Varying = max(ran.Varying, n)
	} else {
		ran.Varying += n
	}
}

// project multiplies each token by the weight of its expert, and adds a copy of the expert's bias
// to each token.
func (l MoE) project(t *tape.Tape, x tape.Tensor, name string, o tape.Op, bias bool) tape.Tensor {
	o.In, o.Params = []tape.Tensor{x}, true
	o.Keep = t.ForWeights(o.In)
	if path := t.DeclaredPath(); t.Cfg.Quantized.Holds(path) && !t.Cfg.LeavesWide(path) { // one expert after another
		quantizedProduct(t, &o, alloc.Shape{l.FFN, l.Hidden})
	}
	AddParam(t, &o, name, l.Experts, o.Shape[1], x.Dim(-1))
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
	return t.Op(tape.Op{In: []tape.Tensor{sorted}, Shape: shape, Scatter: true})
}
