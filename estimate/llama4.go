package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// llama4MoE is the mixture of Llama 4: all experts see all tokens, each token times its score for the
// expert, which is 0 but for the TopK.
type llama4MoE struct{ MoE }

// Kind names the row.
func (llama4MoE) Kind() string { return "MoE" }

func (l llama4MoE) router() Layer { return Linear{In: l.Hidden, Out: l.Experts, NoBias: true} }

// Declare implements Layer.
func (l llama4MoE) Declare(d *Declaration) {
	if l.check(d) {
		d.Layer("experts", llama4Experts(l))
		d.Layer("router", l.router())
		d.Layer("shared_expert", l.shared())
	}
}

// Forward implements Layer.
func (l llama4MoE) Forward(t *Tape, x Tensor) (Tensor, error) {
	tokens, err := l.tokens(t, x)
	if err != nil {
		return Tensor{}, err
	}
	t.unmeasured |= mixtures
	visits := int(min(FLOPs(tokens, l.Experts), maxField))
	scores, err := t.Call("router", l.router(), x)
	if err == nil {
		scores, err = t.Op(Op{In: []Tensor{scores}, Shape: scores.Shape, KeepOwn: []Own{{alloc.Shape{tokens, or(l.TopK, 2)}, alloc.Int64}}})
	}
	if err == nil {
		scores, err = t.Op(Op{In: []Tensor{scores}, Shape: scores.Shape, DType: alloc.Float32, KeepOutput: true})
	}
	if err == nil { // by expert, in the type of the tokens
		scores, err = t.Op(Op{In: []Tensor{scores}, Shape: alloc.Shape{visits, 1}, DType: x.DType})
	}
	if err != nil {
		return Tensor{}, err
	}
	all, err := t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}})
	if err == nil {
		all, err = mul(t, all, scores)
	}
	if err == nil {
		all, err = t.Call("experts", llama4Experts(l), all)
	}
	if err != nil {
		return Tensor{}, err
	}
	y, err := t.Call("shared_expert", l.shared(), x)
	if err != nil {
		return Tensor{}, err
	}
	sum, err := t.Op(Op{In: []Tensor{all}, Shape: y.Shape})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y, sum}, Shape: y.Shape, InPlace: true, PassGrad: true})
}

type llama4Experts struct{ MoE }

// Kind names the row.
func (l llama4Experts) Kind() string { return experts(l).Kind() }

// Declare implements Layer.
func (l llama4Experts) Declare(d *Declaration) {
	d.Add(Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, l.Hidden, 2 * l.FFN}, Split: true})
	d.Add(Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.FFN, l.Hidden}, Split: true, apart: true})
	d.Layer("act_fn", l.Activation.layer(UseSiLU))
}

// Forward implements Layer.
func (l llama4Experts) Forward(t *Tape, x Tensor) (Tensor, error) {
	visits := x.Shape[0]
	both, err := t.Op(Op{
		In: []Tensor{x}, Shape: alloc.Shape{visits, 2 * l.FFN}, Params: true, Keep: []Tensor{x},
		Split: t.cfg.sharding.Tensor > 1, FLOPs: FLOPs(visits, 2*l.FFN, l.Hidden, 2),
	})
	if err != nil {
		return Tensor{}, err
	}
	parts, err := t.parts(both, l.FFN, l.FFN)
	if err != nil {
		return Tensor{}, err
	}
	gate, err := t.Call("act_fn", l.Activation.layer(UseSiLU), parts[0])
	if err == nil {
		gate, err = mul(t, gate, parts[1])
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{gate}, Shape: x.Shape, Params: true, apart: true, Keep: []Tensor{gate}, Gather: true, FLOPs: FLOPs(visits, l.Hidden, l.FFN, 2)})
}

// unitHeads divides each head by its length, in float32.
func unitHeads(t *Tape, x Tensor, heads, size int) (Tensor, error) {
	d := x.DType
	y := x
	var err error
	if d.Bits() < 32 {
		if y, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32}); err != nil {
			return Tensor{}, err
		}
	}
	stats := Own{alloc.Shape{x.Shape[0], x.Shape[1], heads, 1}, alloc.Float32}
	y, err = t.Op(Op{In: []Tensor{y}, Shape: x.Shape, Keep: []Tensor{y}, KeepOwn: []Own{stats}})
	if err != nil || d == y.DType {
		return y, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: x.Shape, DType: d})
}

func llama4Attention(c Transformer, a *Attention) {
	a.complex, a.unit = true, c.QKNorm != NoQKNorm
	a.QKNorm = NoQKNorm
}
