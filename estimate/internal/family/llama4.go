package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Llama4 is Llama with complex rotation and a mixture in which all experts run.
var Llama4 = &Family{
	Name:  "Llama 4",
	style: style{names: decoderNames{mlp: "feed_forward"}, attention: llama4Attention, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return llama4MoE{m} }},
	Types: []Type{{Name: "llama4_text", Base: "Llama4TextModel", Read: readLlama4Text, Text: true}},
	GGUF:  []GGUF{{Name: "llama4", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Read: ggufLlama4}},
}

// llama4MoE is the mixture of Llama 4: every expert gets all tokens, each multiplied by its score
// for the expert, which is 0 outside of the TopK.
type llama4MoE struct{ layer.MoE }

func (llama4MoE) Kind() string { return "MoE" }

func (l llama4MoE) router() tape.Layer {
	return layer.Linear{In: l.Hidden, Out: l.Experts, NoBias: true}
}

func (l llama4MoE) Declare(d *tape.Declaration) {
	l.Check(d)
	d.Layer("experts", llama4Experts(l))
	d.Layer("router", l.router())
	d.Layer("shared_expert", l.SharedExpert())
}

func (l llama4MoE) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.Experts != "" {
		return l.routed(t, x)
	}
	tokens := l.Tokens(t, x)
	layer.Ran.Of(t).Unmeasured |= layer.Mixtures
	visits := setting.Product(tokens, l.Experts)
	scores := t.Call("router", l.router(), x)
	scores = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{tokens, setting.Or(l.TopK, 2)}, DType: alloc.Int64}}})
	scores = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, DType: alloc.Float32, KeepOutput: true})
	// scores sorted by expert, in the type of the tokens
	scores = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: alloc.Shape{visits, 1}, DType: x.DType})
	all := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{visits, l.Hidden}})
	all = t.Mul(all, scores)
	all = t.Call("experts", llama4Experts(l), all)
	y := t.Call("shared_expert", l.SharedExpert(), x)
	sum := t.Op(tape.Op{In: []tape.Tensor{all}, Shape: y.Shape})
	return t.Op(tape.Op{In: []tape.Tensor{y, sum}, Shape: y.Shape, InPlace: true, PassGrad: true})
}

// routed gives each expert the tokens that are routed to it, as programs other than transformers do.
func (l llama4MoE) routed(t *tape.Tape, x tape.Tensor) tape.Tensor {
	chosen := alloc.Shape{l.Tokens(t, x), setting.Or(l.TopK, 2)}
	scores := t.Call("router", l.router(), x)
	scores = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	scores = t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: chosen, DType: alloc.Float32, KeepOutput: true})
	layer.Routed(t, scores)
	y := t.Call("experts", llama4Experts(l), x)
	return t.Sum(y, t.Call("shared_expert", l.SharedExpert(), x))
}

type llama4Experts struct{ layer.MoE }

func (l llama4Experts) Kind() string { return layer.Experts(l).Kind() }

func (l llama4Experts) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, l.Hidden, 2 * l.FFN}, Split: true, Expert: true})
	d.Add(tape.Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.FFN, l.Hidden}, Split: true, Expert: true, Apart: true})
	d.Layer("act_fn", l.Activation.Layer(layer.UseSiLU))
}

func (l llama4Experts) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.Experts != "" {
		return l.Visit(t, x, func(both tape.Tensor) tape.Tensor {
			parts := t.Parts(both, l.FFN, l.FFN)
			return t.Mul(t.Call("act_fn", l.Activation.Layer(layer.UseSiLU), parts[0]), parts[1])
		}, false)
	}
	visits := x.Shape[0]
	both := t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{visits, 2 * l.FFN}, Params: true, Keep: []tape.Tensor{x},
		Split: t.Cfg.Sharding.Tensor > 1, FLOPs: setting.FLOPs(visits, 2*l.FFN, l.Hidden, 2),
	})
	parts := t.Parts(both, l.FFN, l.FFN)
	gate := t.Call("act_fn", l.Activation.Layer(layer.UseSiLU), parts[0])
	gate = t.Mul(gate, parts[1])
	return t.Op(tape.Op{In: []tape.Tensor{gate}, Shape: x.Shape, Params: true, Apart: true, Keep: []tape.Tensor{gate}, Gather: true, FLOPs: setting.FLOPs(visits, l.Hidden, l.FFN, 2)})
}

func llama4Attention(c Transformer, a *layer.Attention) {
	a.Complex, a.Unit = true, c.QKNorm != layer.NoQKNorm
	a.QKNorm = layer.NoQKNorm
}

// readLlama4Text reads the text part of Llama 4. Its experts have the width intermediate_size, its
// dense layers intermediate_size_mlp. Attention sees chunks, which a cache holds like a window.
func readLlama4Text(c *Config, a *Model) {
	c.noBias()
	c.likeLlama(a)
	a.ExpertFFN, a.SharedFFN = a.FFN, a.FFN
	if c.Flag("use_qk_norm", true) {
		a.QKNorm = layer.NormHeads
	}
	c.Number(&a.FFN, "intermediate_size_mlp", 16384)
	c.mixture(a, "num_local_experts", 16, 1)
	c.unrotated(a)
	sparse, every := c.List("moe_layers"), each(max(1, c.Whole("interleave_moe_layer_step", 1)))
	a.mark(Sparse, func(layer int) bool { return sparse == nil && every(layer) || slices.Contains(sparse, layer) })
	if c.Has("attention_chunk_size") {
		a.mark(Windowed, func(layer int) bool { return a.Kinds[layer]&NoRotation == 0 })
		c.Number(&a.Window, "attention_chunk_size", 8192)
		a.Chunked = true
	}
}

func ggufLlama4(m *Metadata, a *Model) {
	step := 0
	m.may(&step, "interleave_moe_layer_step")
	a.SharedFFN = a.ExpertFFN
	unrotatedFourth(a, 8192) // as in llama.cpp
	a.Chunked = true
	if a.Experts > 0 {
		a.mark(Sparse, each(max(1, step)))
	}
}
