package estimate

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// AltUp describes what Gemma 3n has besides: hidden states side by side (AltUp, arXiv:2301.13310), a path of
// low rank beside attention (LAuReL, arXiv:2411.07501), and an embedding of each token for each block.
type AltUp struct {
	Inputs int // hidden states, of which a block computes one and predicts the others
	Rank   int // of the path beside attention
	Vocab  int // tokens that have embeddings for the blocks
	Size   int // of such an embedding
}

// check reports whether there is an AltUp whose numbers make sense.
func (a *AltUp) check(d *Declaration) bool {
	if a == nil {
		d.Errorf("AltUp is nil: Gemma3n needs it")
		return false
	}
	return d.wantAll(setting{"AltUp.Inputs", a.Inputs, 2}, setting{"AltUp.Rank", a.Rank, 1}, setting{"AltUp.Vocab", a.Vocab, 1}, setting{"AltUp.Size", a.Size, 1})
}

// checked is a Module of a model that needs an AltUp.
type checked struct {
	Module
	altUp *AltUp
}

// Declare implements Layer.
func (l checked) Declare(d *Declaration) {
	if l.altUp.check(d) {
		l.Module.Declare(d)
	}
}

func altUpNorm(size int) RMSNorm {
	return RMSNorm{Size: size, Unfused: true, Late: true, powered: true}
}

func gemma3nNorm(c Transformer) Layer { return altUpNorm(c.Hidden) }

func gemma3nAttention(_ Transformer, a *Attention) {
	a.headNorm = func(_, size int) Layer { return altUpNorm(size) }
	a.QKNorm, a.valueNorm, a.rotations = NormHeads, true, 2
}

// gemma3nEmbedded makes the embeddings of the blocks and the hidden states of the first.
func gemma3nEmbedded(c Transformer) []Layer {
	a := *or(c.AltUp, &AltUp{})
	each := int(min(FLOPs(max(0, c.Blocks), a.Size), maxField))
	parts := Sequential{
		As("embed_tokens_per_layer", Embedding{Num: a.Vocab, Dim: each, Split: true}),
		As("per_layer_model_projection", Linear{In: c.Hidden, Out: each, NoBias: true, Split: ByColumns}),
		As("per_layer_projection_norm", altUpNorm(a.Size)),
	}
	parts = append(parts, a.projections("altup_projections.", c.Hidden)...)
	run := func(f *Flow, x Tensor) Tensor {
		batch, length := x.Dim(0), x.Dim(1)
		per := f.Scale(f.Call("embed_tokens_per_layer", f.Const(alloc.Int64, batch, length)))
		y := f.Call("per_layer_model_projection", x)
		y = f.Op(Op{In: []Tensor{y}, Shape: y.Shape, InPlace: true})
		y = f.Call("per_layer_projection_norm", f.View(y, batch, length, c.Blocks, a.Size))
		f.t.perBlock = f.Scale(f.Add(y, f.View(per, y.Shape...)))
		target, states := root(f, x, false), []Tensor{x}
		for i := range a.Inputs - 1 {
			states = append(states, rescaled(f, f.Call("altup_projections."+strconv.Itoa(i), x), target))
		}
		return f.Op(Op{In: states, Shape: a.shape(x), PassGrad: true})
	}
	return []Layer{Named{"embed_scale", scale{}}, inline{checked{Module{Parts: parts, Run: run}, c.AltUp}}}
}

// gemma3nLast makes one of the hidden states.
func gemma3nLast(c Transformer) []Layer {
	a := *or(c.AltUp, &AltUp{})
	parts := append(a.projections("altup_unembed_projections.", c.Hidden), As("norm", gemma3nNorm(c)))
	run := func(f *Flow, x Tensor) Tensor {
		first := oneOf(f, x)
		target, states := root(f, first, false), []Tensor{first}
		for i := range a.Inputs - 1 {
			states = append(states, rescaled(f, f.Call("altup_unembed_projections."+strconv.Itoa(i), oneOf(f, x)), target))
		}
		all := f.Op(Op{In: states, Shape: x.Shape, PassGrad: true})
		return f.Call("norm", f.Op(Op{In: []Tensor{all}, Shape: first.Shape}))
	}
	return []Layer{inline{checked{Module{Parts: parts, Run: run}, c.AltUp}}}
}

// projections are those of all hidden states but one.
func (a AltUp) projections(name string, hidden int) Sequential {
	var s Sequential
	for i := range min(a.Inputs, maxLayers) - 1 {
		s = append(s, As(name+strconv.Itoa(i), Linear{In: hidden, Out: hidden, NoBias: true}))
	}
	return s
}

// shape is that of all hidden states, of which x is one.
func (a AltUp) shape(x Tensor) alloc.Shape { return append(alloc.Shape{a.Inputs}, x.Shape...) }

// oneOf is one of the hidden states, a slice of all.
func oneOf(f *Flow, x Tensor) Tensor {
	one := x.Shape[min(1, len(x.Shape)):]
	return f.do(one, func() (Tensor, error) {
		views, err := f.t.views(x, one)
		if err != nil {
			return Tensor{}, err
		}
		return views[0], nil
	})
}

// root is the root of the mean of the squares, which is bounded below or not.
func root(f *Flow, x Tensor, bounded bool) Tensor {
	one := x.Shape.Clone()
	one[max(0, len(one)-1)] = 1
	return f.Op(Op{In: []Tensor{x}, Shape: one, Keep: []Tensor{x}, KeepOwn: []Own{{Shape: one}}, KeepOutput: bounded, Workspace: f.t.size(x), BackwardWorkspace: 2 * f.t.size(x)})
}

// rescaled is x with the magnitude of another hidden state.
func rescaled(f *Flow, x, target Tensor) Tensor {
	magnitude := root(f, x, true)
	x = f.Mul(x, target)
	return f.Op(Op{In: []Tensor{x, magnitude}, Shape: x.Shape, Keep: []Tensor{x, magnitude}, BackwardWorkspace: f.t.size(x)})
}

// gemma3nBlock predicts the hidden states, computes one of them, and corrects the others by it.
func gemma3nBlock(c Transformer, b blockParts) Layer {
	a := *or(c.AltUp, &AltUp{})
	linear := func(in, out int) Linear { return Linear{In: in, Out: out, NoBias: true} }
	parts := Sequential{
		b.attention, b.mlp,
		As("input_layernorm", b.norm), As("post_attention_layernorm", b.norm),
		As("pre_feedforward_layernorm", b.norm), As("post_feedforward_layernorm", b.norm),
		As("altup", factor{"correct_output_scale", c.Hidden}),
		As("altup.correction_coefs", linear(a.Inputs, a.Inputs)),
		As("altup.prediction_coefs", linear(a.Inputs, int(min(FLOPs(a.Inputs, a.Inputs), maxField)))),
		As("altup.modality_router", linear(c.Hidden, a.Inputs)),
		As("altup.router_norm", b.norm),
		As("laurel.linear_left", linear(c.Hidden, a.Rank)), As("laurel.linear_right", linear(a.Rank, c.Hidden)),
		As("laurel.post_laurel_norm", b.norm),
		As("per_layer_input_gate", linear(c.Hidden, a.Size)), As("per_layer_projection", linear(a.Size, c.Hidden)),
		As("post_per_layer_input_norm", b.norm),
	}
	act := c.Activation.layer(UseGELUTanh)
	run := func(f *Flow, x Tensor) Tensor {
		predicted := a.predict(f, x)
		active := oneOf(f, predicted)
		y := beside(f, active)
		y = f.Add(y, f.Call("post_feedforward_layernorm", f.Call(b.mlp.Name, f.Call("pre_feedforward_layernorm", y))))
		all := a.correct(f, predicted, active, y)
		one := f.Call("altup", f.Copy(oneOf(f, all)))
		one = f.Mul(f.Apply(act, f.Call("per_layer_input_gate", one)), f.do(alloc.Shape{}, func() (Tensor, error) { return f.t.ofBlock(a.Size) }))
		one = f.Call("post_per_layer_input_norm", f.Call("per_layer_projection", one))
		f.t.hold(x)
		f.t.hold(predicted)
		// In place of all but the first, whose gradient is copied.
		return f.Op(Op{In: []Tensor{all, one}, Shape: all.Shape, InPlace: true})
	}
	return checked{Module{Name: "DecoderBlock", Parts: parts, Run: run}, c.AltUp}
}

// beside is attention and the path beside it, with x.
func beside(f *Flow, x Tensor) Tensor {
	normed := f.Call("input_layernorm", x)
	low := f.Call("laurel.post_laurel_norm", f.Call("laurel.linear_right", f.Call("laurel.linear_left", normed)))
	low = f.Add(normed, low)
	y := f.Add(x, f.Call("post_attention_layernorm", f.Call("self_attn", normed)))
	return f.Scale(f.Add(y, low))
}

// modalities are the weights of the hidden states, bounded by a tanh in float32.
func (a AltUp) modalities(f *Flow, x Tensor) Tensor {
	y := f.Call("altup.modality_router", f.Scale(f.Call("altup.router_norm", x)))
	d := y.DType
	if d.Bits() < 32 {
		y = f.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: alloc.Float32})
	}
	y = f.Op(Op{In: []Tensor{y}, Shape: y.Shape, KeepOutput: true})
	if d.Bits() < 32 {
		y = f.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: d})
	}
	return y
}

// predict multiplies the hidden states by a matrix for each token and adds them.
func (a AltUp) predict(f *Flow, x Tensor) Tensor {
	weights := f.Call("altup.prediction_coefs", a.modalities(f, oneOf(f, x)))
	y := f.MatMul(x, weights, a.Inputs, x.Shape...)
	y = f.Op(Op{In: []Tensor{y, x}, Shape: x.Shape, InPlace: true, PassGrad: true})
	return f.Op(Op{In: []Tensor{y}, Shape: x.Shape, PassGrad: true}) // made contiguous
}

// correct adds to each of the hidden states a part of what the computed one has beyond its prediction.
func (a AltUp) correct(f *Flow, predicted, active, computed Tensor) Tensor {
	weights := f.Scale(f.Call("altup.correction_coefs", a.modalities(f, computed)))
	news := f.Op(Op{In: []Tensor{computed, active}, Shape: computed.Shape})
	news = f.Op(Op{In: []Tensor{news}, Shape: predicted.Shape}) // once for each
	y := f.Op(Op{In: []Tensor{news, weights}, Shape: news.Shape, Keep: []Tensor{news, weights}, BackwardWorkspace: f.t.size(news)})
	return f.Op(Op{In: []Tensor{y, predicted}, Shape: y.Shape, InPlace: true, PassGrad: true})
}

// ofBlock is the embedding of the tokens for a block.
func (t *Tape) ofBlock(size int) (Tensor, error) {
	all := t.perBlock
	if len(all.Shape) != 4 {
		return Tensor{}, t.Errorf("the block has no embeddings of its own: the first layers must make them")
	}
	views, err := t.views(all, alloc.Shape{all.Shape[0], all.Shape[1], size})
	if err != nil {
		return Tensor{}, err
	}
	return views[0], nil
}

// factor multiplies by a vector that is learned.
type factor struct {
	name string
	n    int
}

// Declare implements Layer.
func (l factor) Declare(d *Declaration) { d.Param(l.name, l.n) }

// Forward implements Layer.
func (l factor) Forward(t *Tape, x Tensor) (Tensor, error) {
	reads := []Tensor{x}
	return t.Op(Op{In: reads, Shape: x.Shape, Params: true, Keep: t.forWeights(reads)})
}
