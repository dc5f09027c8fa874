package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ErnieMoE is ERNIE 4.5 with a mixture in some layers (modeling_ernie4_5_moe.py).
var ErnieMoE = &Family{
	Name:  "ERNIE 4.5 MoE",
	style: style{attention: ernieAttention, mixture: func(c Transformer, m layer.MoE) tape.Layer { return ernieMixture{m, c.Bias} }},
	Types: []Type{{Name: "ernie4_5_moe", Base: "Ernie4_5_MoeModel", Read: readErnieMoE}},
	GGUF:  []GGUF{{Name: "ernie4_5-moe", Read: ggufErnieMoE}},
}

// ernieMixture is a mixture whose router chooses by a softmax and a bias that is not trained. With
// biases, the shared MLP has them and the experts do not.
type ernieMixture struct {
	layer.MoE
	bias bool
}

func (ernieMixture) Kind() string { return "MoE" }

func (l ernieMixture) shared() tape.Layer {
	return layer.GatedMLP{Hidden: l.Hidden, FFN: l.Shared, Activation: l.Activation, Bias: l.bias}
}

func (l ernieMixture) Declare(d *tape.Declaration) {
	l.Check(d)
	d.Layer("gate", ernieRouter{l.MoE})
	d.Layer("experts", layer.Experts{MoE: l.MoE})
	if l.Shared > 0 {
		d.Layer("shared_experts", l.shared())
	}
}

func (l ernieMixture) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	var shared tape.Tensor
	if l.Shared > 0 {
		shared = t.Call("shared_experts", l.shared(), x)
	}
	y := l.Route(t, x, "gate", ernieRouter{l.MoE}, layer.Experts{MoE: l.MoE})
	if l.Shared == 0 {
		return y
	}
	return t.Sum(y, shared)
}

type ernieRouter struct{ layer.MoE }

func (ernieRouter) Kind() string { return "Router" }

func (l ernieRouter) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{l.Experts, l.Hidden}, DType: alloc.Float32})
	layer.AdaptParam(d, "weight", 1, l.Experts, l.Hidden)
	d.Add(tape.Param{Name: "moe_statics.e_score_correction_bias", Shape: alloc.Shape{1, l.Experts}, DType: alloc.Float32})
}

// Forward records the probabilities of each token's experts, divided by their sum, in float32.
func (l ernieRouter) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	tokens, low := l.Tokens(t, x), x.DType
	chosen, one := alloc.Shape{tokens, setting.Or(l.TopK, 2)}, alloc.Shape{tokens, 1}
	x = t.Widen(x)
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []tape.Tensor{x}, FLOPs: setting.FLOPs(tokens, l.Experts, l.Hidden, 2),
	}
	layer.AddParam(t, &o, "weight", 1, l.Experts, l.Hidden)
	probs := layer.KeepOutput(t, t.Op(o))
	best := t.Op(tape.Op{In: []tape.Tensor{probs}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	best = t.Op(tape.Op{In: []tape.Tensor{best}, Shape: chosen, Keep: []tape.Tensor{best}, KeepOwn: []tape.Own{{Shape: one}, {Shape: one}}}) // the sum before and after it is clamped
	return t.In(low, best)
}

func readErnieMoE(c *Config, a *Model) {
	readErnie(c, a)
	a.HeadBias = a.Bias
	shared := 0
	c.mixture(a, "num_experts", 64, 6)
	c.Number(&a.ExpertFFN, "moe_intermediate_size", 1536)
	if shared = c.Whole("moe_num_shared_experts", 2); shared > 0 {
		c.Times(&a.SharedFFN, "moe_num_shared_experts", a.ExpertFFN, float64(shared))
	}
	every, first, last := max(1, c.Whole("moe_layer_interval", 1)), c.Whole("moe_layer_start_index", 1), c.Whole("moe_layer_end_index", -1)
	a.sparse(func(block int) bool {
		return (block+1)%every == 0 && block >= first && (last == -1 || block <= last)
	})
}
