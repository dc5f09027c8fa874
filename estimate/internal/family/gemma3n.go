package family

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma3n is Gemma with AltUp, and keys and values that blocks share.
var Gemma3n = &Family{
	Name:  "Gemma 3n",
	style: style{scaled: true, embedded: gemma3nEmbedded, mlp: gemmaMLP, norm: gemma3nNorm, attention: gemma3nAttention, rotations: func(Transformer) int { return 2 }, block: gemma3nBlock, last: gemma3nLast},
	Types: []Type{{Name: "gemma3n_text", Base: "Gemma3nTextModel", Read: readGemma3n}},
	GGUF:  []GGUF{{Name: "gemma3n", With: Transformer{Head: Head{CappedLogits: true}}, Window: 5, Read: ggufGemma3n}},
}

// AltUp describes what only Gemma 3n has: several hidden states side by side (AltUp,
// arXiv:2301.13310), a low-rank path beside attention (LAuReL, arXiv:2411.07501), and an embedding
// of each token for each block.
type AltUp struct {
	Inputs int // hidden states; a block computes one and predicts the others
	Rank   int // of the low-rank path beside attention
	Vocab  int // tokens that have embeddings for the blocks
	Size   int // of such an embedding
}

// check fails if AltUp is missing or its numbers make no sense.
func (a *AltUp) check(d *tape.Declaration) {
	if a == nil {
		d.Failf("there is no AltUp: Gemma 3n needs it")
	}
	d.Want("AltUp.Inputs", a.Inputs, 2)
	d.Want("AltUp.Rank", a.Rank, 1)
	d.Want("AltUp.Vocab", a.Vocab, 1)
	d.Want("AltUp.Size", a.Size, 1)
}

// checked is a Module of a model that must have an AltUp.
type checked struct {
	tape.Module
	altUp *AltUp
}

func (l checked) Declare(d *tape.Declaration) {
	l.altUp.check(d)
	l.Module.Declare(d)
}

func altUpNorm(size int) layer.RMSNorm {
	return layer.RMSNorm{Size: size, Unfused: true, Late: true, Powered: true}
}

func gemma3nNorm(c Transformer) tape.Layer { return altUpNorm(c.Hidden) }

func gemma3nAttention(_ Transformer, a *layer.Attention) {
	a.HeadNorm = func(_, size int) tape.Layer { return altUpNorm(size) }
	a.QKNorm, a.ValueNorm, a.Rotations = layer.NormHeads, true, 2
}

// gemma3nEmbedded makes the embeddings for the blocks, and the hidden states that the first block
// reads.
func gemma3nEmbedded(c Transformer) []tape.Layer {
	a := *setting.Or(Own[AltUp](c), &AltUp{})
	each := setting.Product(max(0, c.Blocks), a.Size)
	parts := append(perBlockParts(c.Hidden, a.Vocab, each, a.Size), a.projections("altup_projections.", c.Hidden)...)
	run := func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		makePerBlock(f, x, c.Blocks, a.Size, true)
		target, states := root(f, x, false), []tape.Tensor{x}
		for i := range a.Inputs - 1 {
			states = append(states, rescaled(f, f.Call("altup_projections."+strconv.Itoa(i), x), target))
		}
		return f.Op(tape.Op{In: states, Shape: a.shape(x), PassGrad: true})
	}
	return []tape.Layer{tape.Inline(checked{tape.Module{Parts: parts, Run: run}, Own[AltUp](c)})}
}

// gemma3nLast joins the hidden states to one.
func gemma3nLast(c Transformer) []tape.Layer {
	a := *setting.Or(Own[AltUp](c), &AltUp{})
	parts := append(a.projections("altup_unembed_projections.", c.Hidden), tape.As("norm", gemma3nNorm(c)))
	run := func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		first := oneOf(f, x)
		target, states := root(f, first, false), []tape.Tensor{first}
		for i := range a.Inputs - 1 {
			states = append(states, rescaled(f, f.Call("altup_unembed_projections."+strconv.Itoa(i), oneOf(f, x)), target))
		}
		all := f.Op(tape.Op{In: states, Shape: x.Shape, PassGrad: true})
		return f.Call("norm", f.Op(tape.Op{In: []tape.Tensor{all}, Shape: first.Shape}))
	}
	return []tape.Layer{tape.Inline(checked{tape.Module{Parts: parts, Run: run}, Own[AltUp](c)})}
}

// projections returns a projection for each hidden state but one.
func (a AltUp) projections(name string, hidden int) tape.Sequential {
	var s tape.Sequential
	for i := range min(a.Inputs, tape.MaxLayers) - 1 {
		s = append(s, tape.As(name+strconv.Itoa(i), layer.Linear{In: hidden, Out: hidden, NoBias: true}))
	}
	return s
}

// shape returns the shape of all hidden states together, where x is one of them.
func (a AltUp) shape(x tape.Tensor) alloc.Shape { return append(alloc.Shape{a.Inputs}, x.Shape...) }

// oneOf takes one of the hidden states, as a slice.
func oneOf(f *tape.Flow, x tape.Tensor) tape.Tensor {
	one := x.Shape[min(1, len(x.Shape)):]
	return f.Views(x, one)[0]
}

// root records the root of the mean square, with a lower bound if bounded.
func root(f *tape.Flow, x tape.Tensor, bounded bool) tape.Tensor {
	one := slices.Clone(x.Shape)
	one[max(0, len(one)-1)] = 1
	return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: one, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: one}}, KeepOutput: bounded, Workspace: f.Size(x), BackwardWorkspace: 2 * f.Size(x)})
}

// rescaled scales x to the magnitude of another hidden state.
func rescaled(f *tape.Flow, x, target tape.Tensor) tape.Tensor {
	magnitude := root(f, x, true)
	x = f.Mul(x, target)
	return f.Op(tape.Op{In: []tape.Tensor{x, magnitude}, Shape: x.Shape, Keep: []tape.Tensor{x, magnitude}, BackwardWorkspace: f.Size(x)})
}

// gemma3nBlock predicts the hidden states, computes one of them, and corrects the others by it.
func gemma3nBlock(c Transformer, b blockParts) tape.Layer {
	a := *setting.Or(Own[AltUp](c), &AltUp{})
	linear := func(in, out int) layer.Linear { return layer.Linear{In: in, Out: out, NoBias: true} }
	parts := tape.Sequential{
		b.attention, b.mlp,
		tape.As("input_layernorm", b.norm), tape.As("post_attention_layernorm", b.norm),
		tape.As("pre_feedforward_layernorm", b.norm), tape.As("post_feedforward_layernorm", b.norm),
		tape.As("altup", factor{"correct_output_scale", c.Hidden}),
		tape.As("altup.correction_coefs", linear(a.Inputs, a.Inputs)),
		tape.As("altup.prediction_coefs", linear(a.Inputs, setting.Product(a.Inputs, a.Inputs))),
		tape.As("altup.modality_router", linear(c.Hidden, a.Inputs)),
		tape.As("altup.router_norm", b.norm),
		tape.As("laurel.linear_left", linear(c.Hidden, a.Rank)), tape.As("laurel.linear_right", linear(a.Rank, c.Hidden)),
		tape.As("laurel.post_laurel_norm", b.norm),
		tape.As("per_layer_input_gate", linear(c.Hidden, a.Size)), tape.As("per_layer_projection", linear(a.Size, c.Hidden)),
		tape.As("post_per_layer_input_norm", b.norm),
	}
	act := c.Activation.Layer(layer.UseGELUTanh)
	run := func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		predicted := a.predict(f, x)
		active := oneOf(f, predicted)
		y := beside(f, active)
		y = f.Add(y, f.Call("post_feedforward_layernorm", f.Call(b.mlp.Name, f.Call("pre_feedforward_layernorm", y))))
		all := a.correct(f, predicted, active, y)
		one := f.Call("altup", f.Copy(oneOf(f, all)))
		one = f.Mul(f.Apply(act, f.Call("per_layer_input_gate", one)), ofBlock(f.Tape, a.Size))
		one = f.Call("post_per_layer_input_norm", f.Call("per_layer_projection", one))
		f.Hold(x)
		f.Hold(predicted)
		// In place, for all but the first. The gradient of the first is copied.
		return f.Op(tape.Op{In: []tape.Tensor{all, one}, Shape: all.Shape, InPlace: true})
	}
	return checked{tape.Module{Name: "DecoderBlock", Parts: parts, Run: run}, Own[AltUp](c)}
}

// beside records attention and the low-rank path beside it, and adds both to x.
func beside(f *tape.Flow, x tape.Tensor) tape.Tensor {
	normed := f.Call("input_layernorm", x)
	low := f.Call("laurel.post_laurel_norm", f.Call("laurel.linear_right", f.Call("laurel.linear_left", normed)))
	low = f.Add(normed, low)
	y := f.Add(x, f.Call("post_attention_layernorm", f.Call("self_attn", normed)))
	return f.Scale(f.Add(y, low))
}

// modalities returns the weights of the hidden states, bounded by a tanh in float32.
func (a AltUp) modalities(f *tape.Flow, x tape.Tensor) tape.Tensor {
	y := f.Call("altup.modality_router", f.Scale(f.Call("altup.router_norm", x)))
	d := y.DType
	y = f.Widen(y)
	y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, KeepOutput: true})
	if d.Bits() < 32 {
		y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, DType: d})
	}
	return y
}

// predict multiplies the hidden states by a matrix for each token and adds them.
func (a AltUp) predict(f *tape.Flow, x tape.Tensor) tape.Tensor {
	weights := f.Call("altup.prediction_coefs", a.modalities(f, oneOf(f, x)))
	y := f.MatMul(x, weights, a.Inputs, x.Shape...)
	y = f.Op(tape.Op{In: []tape.Tensor{y, x}, Shape: x.Shape, InPlace: true, PassGrad: true})
	return f.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, PassGrad: true}) // made contiguous
}

// correct adds to each of the hidden states a part of what the computed one has beyond its prediction.
func (a AltUp) correct(f *tape.Flow, predicted, active, computed tape.Tensor) tape.Tensor {
	weights := f.Scale(f.Call("altup.correction_coefs", a.modalities(f, computed)))
	news := f.Op(tape.Op{In: []tape.Tensor{computed, active}, Shape: computed.Shape})
	news = f.Op(tape.Op{In: []tape.Tensor{news}, Shape: predicted.Shape}) // once for each
	y := f.Op(tape.Op{In: []tape.Tensor{news, weights}, Shape: news.Shape, Keep: []tape.Tensor{news, weights}, BackwardWorkspace: f.Size(news)})
	return f.Op(tape.Op{In: []tape.Tensor{y, predicted}, Shape: y.Shape, InPlace: true, PassGrad: true})
}

// perBlock holds the embeddings of the tokens for all blocks.
var perBlock tape.Slot[tape.Tensor]

// perBlockParts makes the layers for them; each is the width for all blocks, size the width for
// one.
func perBlockParts(hidden, vocab, each, size int) tape.Sequential {
	return tape.Sequential{
		tape.As("embed_tokens_per_layer", layer.Embedding{Num: vocab, Dim: each, Split: true}),
		tape.As("per_layer_model_projection", layer.Linear{In: hidden, Out: each, NoBias: true, Split: layer.ByColumns}),
		tape.As("per_layer_projection_norm", altUpNorm(size)),
	}
}

// makePerBlock makes these embeddings from the tokens and from x. inPlace says whether the
// projection of x is scaled in place.
func makePerBlock(f *tape.Flow, x tape.Tensor, blocks, size int, inPlace bool) {
	batch, length := x.Dim(0), x.Dim(1)
	per := f.Scale(f.Call("embed_tokens_per_layer", f.Const(alloc.Int64, batch, length)))
	y := f.Call("per_layer_model_projection", x)
	y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, InPlace: inPlace})
	y = f.Call("per_layer_projection_norm", f.View(y, batch, length, blocks, size))
	*perBlock.Of(f.Tape) = f.Scale(f.Add(y, f.View(per, y.Shape...)))
}

// ofBlock returns the tokens' embeddings for the next block.
func ofBlock(t *tape.Tape, size int) tape.Tensor {
	all := *perBlock.Of(t)
	if len(all.Shape) != 4 {
		t.Failf("the block has no embeddings of its own: the first layers must make them")
	}
	views := t.Views(all, alloc.Shape{all.Shape[0], all.Shape[1], size})
	return views[0]
}

// factor multiplies by a learned vector.
type factor struct {
	name string
	n    int
}

func (l factor) Declare(d *tape.Declaration) { d.Param(l.name, l.n) }

func (l factor) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	reads := []tape.Tensor{x}
	return t.Op(tape.Op{In: reads, Shape: x.Shape, Params: true, Keep: t.ForWeights(reads)})
}

// readGemma3n reads the text model of Gemma 3n.
func readGemma3n(c *Config, a *Model) {
	gemma2(c, a)
	c.noBias()
	var altUp AltUp
	c.Number(&a.KVHeads, "num_key_value_heads", 2)
	c.Number(&altUp.Inputs, "altup_num_inputs", 4)
	c.Number(&altUp.Rank, "laurel_rank", 64)
	c.Number(&altUp.Vocab, "vocab_size_per_layer_input", 262_144)
	c.Number(&altUp.Size, "hidden_size_per_layer_input", 256)
	if !c.Flag("altup_correct_scale", true) {
		c.Unknown("altup_correct_scale", "false")
	}
	a.Own, a.CappedLogits = &altUp, true
	c.Windows(a, 512, each(5))
	thinned(c, a)
	c.borrowing(a, 15)
}

// thinned marks the layers whose MLP sets most elements to 0.
func thinned(c *Config, a *Model) {
	const key = "activation_sparsity_pattern"
	var all float64
	var pattern []float64
	switch text := c.Value(key); {
	case text == nil:
		thin(a)
	case json.Unmarshal(text, &all) == nil:
		a.mark(Thinned, func(int) bool { return all > 0 })
	case json.Unmarshal(text, &pattern) != nil || len(pattern) != len(a.kinds()):
		c.Fail(key, "it is not a number or one for each of %d layers", a.Blocks)
	default:
		a.mark(Thinned, func(layer int) bool { return pattern[layer] > 0 })
	}
}

// thin marks these layers if no setting names them: the first ten, of a model with more.
func thin(a *Model) {
	const usual = 10
	a.mark(Thinned, func(layer int) bool { return a.Blocks > usual && layer < usual })
}

// ggufGemma3n reads what only Gemma 3n has. The tensors show the rank of LAuReL and how many tokens
// have embeddings for each block; the thinned layers are those of the published models.
func ggufGemma3n(m *Metadata, a *Model) {
	var altUp AltUp
	shared := 0
	m.must(&altUp.Inputs, "altup.num_inputs")
	m.must(&altUp.Size, "embedding_length_per_layer_input")
	m.may(&shared, "attention.shared_kv_layers")
	altUp.Rank, altUp.Vocab = m.Rows("blk.0.laurel_l.weight"), m.Rows("per_layer_token_embd.weight")
	a.Own = &altUp
	thin(a)
	if err := a.borrow(shared); err != nil {
		m.keep(err)
	}
}
