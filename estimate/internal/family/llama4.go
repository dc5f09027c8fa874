package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// llama4MoE is the mixture of Llama 4: all experts see all tokens, each token times its score for the
// expert, which is 0 but for the TopK.
type llama4MoE struct{ layer.MoE }

// Kind names the row.
func (llama4MoE) Kind() string { return "MoE" }

func (l llama4MoE) router() tape.Layer {
	return layer.Linear{In: l.Hidden, Out: l.Experts, NoBias: true}
}

func (l llama4MoE) Declare(d *tape.Declaration) {
	if l.Check(d) {
		d.Layer("experts", llama4Experts(l))
		d.Layer("router", l.router())
		d.Layer("shared_expert", l.SharedExpert())
	}
}

func (l llama4MoE) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	tokens, err := l.Tokens(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	layer.Ran.Of(t).Unmeasured |= layer.Mixtures
	visits := int(min(setting.FLOPs(tokens, l.Experts), setting.MaxField))
	scores, err := t.Call("router", l.router(), x)
	if err == nil {
		scores, err = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{tokens, setting.Or(l.TopK, 2)}, DType: alloc.Int64}}})
	}
	if err == nil {
		scores, err = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, DType: alloc.Float32, KeepOutput: true})
	}
	if err == nil { // by expert, in the type of the tokens
		scores, err = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: alloc.Shape{visits, 1}, DType: x.DType})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	all, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}})
	if err == nil {
		all, err = tape.Mul(t, all, scores)
	}
	if err == nil {
		all, err = t.Call("experts", llama4Experts(l), all)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	y, err := t.Call("shared_expert", l.SharedExpert(), x)
	if err != nil {
		return tape.Tensor{}, err
	}
	sum, err := t.Op(tape.Op{In: []tape.Tensor{all}, Shape: y.Shape})
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y, sum}, Shape: y.Shape, InPlace: true, PassGrad: true})
}

type llama4Experts struct{ layer.MoE }

// Kind names the row.
func (l llama4Experts) Kind() string { return layer.Experts(l).Kind() }

func (l llama4Experts) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, l.Hidden, 2 * l.FFN}, Split: true})
	d.Add(tape.Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.FFN, l.Hidden}, Split: true, Apart: true})
	d.Layer("act_fn", l.Activation.Layer(layer.UseSiLU))
}

func (l llama4Experts) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	visits := x.Shape[0]
	both, err := t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{visits, 2 * l.FFN}, Params: true, Keep: []tape.Tensor{x},
		Split: t.Cfg.Sharding.Tensor > 1, FLOPs: setting.FLOPs(visits, 2*l.FFN, l.Hidden, 2),
	})
	if err != nil {
		return tape.Tensor{}, err
	}
	parts, err := t.Parts(both, l.FFN, l.FFN)
	if err != nil {
		return tape.Tensor{}, err
	}
	gate, err := t.Call("act_fn", l.Activation.Layer(layer.UseSiLU), parts[0])
	if err == nil {
		gate, err = tape.Mul(t, gate, parts[1])
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{gate}, Shape: x.Shape, Params: true, Apart: true, Keep: []tape.Tensor{gate}, Gather: true, FLOPs: setting.FLOPs(visits, l.Hidden, l.FFN, 2)})
}

func llama4Attention(c Transformer, a *layer.Attention) {
	a.Complex, a.Unit = true, c.QKNorm != layer.NoQKNorm
	a.QKNorm = layer.NoQKNorm
}
