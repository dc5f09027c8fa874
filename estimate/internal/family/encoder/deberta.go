package encoder

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// DeBERTa is BERT with scores from content to distance and from distance to content, as in versions
// 2 and 3 (arXiv:2006.03654, section 3.1; transformers' modeling_deberta_v2.py). Its sizes equal
// published ones.
var DeBERTa = &family.Family{
	Name:   "DeBERTa",
	Layers: deBERTa,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "deberta-v2", Base: "DebertaV2Model", Read: readDeBERTa}},
}

// disentangled holds DeBERTa's settings for distances.
type disentangled struct {
	span      int  // distances to either side, or buckets of them, that have a vector; 0 means no relative attention
	normed    bool // the vectors of distances are normed
	apart     bool // distances have their own projections
	toKeys    bool // content is compared with distances ("c2p")
	toQueries bool // distances are compared with content ("p2c")
	positions bool // positions also have embeddings
	kernel    int  // of a convolution beside the first block; 0 means none
}

func deBERTa(c family.Transformer) []tape.Layer {
	own := family.Own[disentangled](c)
	if own == nil {
		own = &disentangled{}
	}
	block := deBERTaBlock(c, own)
	t := text{masks: true, blocks: c.Blocks, block: block}
	t.added = append(t.added, tape.As("ids", counted{c.Positions, []string{"position_ids"}}))
	if own.positions {
		t.added = append(t.added, tape.As("position_embeddings", family.Positions{Num: c.Positions, Dim: c.Hidden}))
	}
	if c.Types > 0 {
		t.added = append(t.added, tape.As("token_type_embeddings", tokenTypes{Num: c.Types, Dim: c.Hidden}))
	}
	t.first = append(t.first, tape.Inline(betweenTokens{apart: own.span > 0}))
	if own.span > 0 {
		t.first = append(t.first, tape.Inline(distances{2 * own.span, c.Hidden, own.normed}))
	}
	if own.kernel > 0 {
		t.first, t.blocks, t.from = append(t.first, tape.Inline(besideFirst(c, own.kernel, block))), max(0, c.Blocks-1), 1
	}
	layers := t.layers(c)
	switch {
	case c.MaskedLM:
		return append(layers, maskedLM(c))
	case c.Classes != 0 && !c.NoHead:
		layers = append(layers, tape.As("pooler", tape.Sequential{family.First{}, tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.Inline(layer.GELU{})}))
	}
	if c.Classes != 0 {
		layers = append(layers, classifier(c, c.Drop())...)
	}
	return layers
}

// distances makes the vectors of distances once, for all blocks.
type distances struct {
	n, hidden int
	normed    bool
}

func (l distances) Declare(d *tape.Declaration) {
	d.Layer("rel_embeddings", layer.Embedding{Num: l.n, Dim: l.hidden})
	if l.normed {
		d.Layer("LayerNorm", layer.LayerNorm{Size: l.hidden})
	}
}

func (l distances) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	// The vectors are the table itself, a parameter, so they take no other memory.
	vectors := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{l.n, l.hidden}, Params: true, View: true})
	if l.normed {
		vectors = t.Call("LayerNorm", layer.LayerNorm{Size: l.hidden}, vectors)
	}
	*vectorsOfDistances.Of(t) = vectors
	return x
}

// vectorsOfDistances holds the output of distances.
var vectorsOfDistances tape.Slot[tape.Tensor]

// betweenTokens makes what all blocks read of each pair of tokens: a mask in float32, which the model makes where it is
// given none, and the numbers of distances. A block turns both into tensors of its own for the backward pass; a checkpointed
// one holds these, for its second run (DebertaV2Encoder.forward, of transformers 5.24.0).
type betweenTokens struct {
	apart bool // distances have numbers
}

func (l betweenTokens) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	batch, length := x.Shape[0], x.Shape[1]
	pairs := &pairTensors{}
	ones := t.Const(alloc.Float32, batch, length)
	pairs.mask = t.Op(tape.Op{In: []tape.Tensor{ones}, Shape: alloc.Shape{batch, 1, length, length}, DType: alloc.Float32})
	if l.apart {
		positions := t.Const(alloc.Int64, length)
		pairs.distances = t.Op(tape.Op{In: []tape.Tensor{positions}, Shape: alloc.Shape{length, length}, DType: alloc.Int64})
	}
	*ofPairs.Of(t) = pairs
	return x
}

// pairTensors is what betweenTokens makes.
type pairTensors struct{ mask, distances tape.Tensor }

// ofPairs holds the output of betweenTokens.
var ofPairs tape.Slot[*pairTensors]

// deBERTaBlock normalises after each part.
func deBERTaBlock(c family.Transformer, own *disentangled) tape.Layer {
	hidden := layer.Linear{In: c.Hidden, Out: c.Hidden}
	norm, drop := layer.LayerNorm{Size: c.Hidden}, c.Drop()
	parts := tape.Sequential{tape.As("attention.self.query_proj", hidden), tape.As("attention.self.key_proj", hidden), tape.As("attention.self.value_proj", hidden)}
	keys, queries := "attention.self.key_proj", "attention.self.query_proj"
	if own.apart {
		keys, queries = "attention.self.pos_key_proj", "attention.self.pos_query_proj"
		if own.toKeys {
			parts = append(parts, tape.As(keys, hidden))
		}
		if own.toQueries {
			parts = append(parts, tape.As(queries, hidden))
		}
	}
	parts = append(parts, tape.As("attention.output.dense", hidden), tape.As("attention.output.LayerNorm", norm),
		tape.As("intermediate.dense", layer.Linear{In: c.Hidden, Out: c.FFN}), tape.As("output.dense", layer.Linear{In: c.FFN, Out: c.Hidden}), tape.As("output.LayerNorm", norm))
	return tape.Module{Name: "DebertaV2Layer", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		layer.Ran.Of(f.Tape).Unmeasured |= layer.Distances
		batch, length := x.Dim(0), x.Dim(1)
		// PyTorch copies these tensors so that the dimension of the heads comes before that of the tokens.
		q := f.Copy(f.Call("attention.self.query_proj", x))
		k := f.Copy(f.Call("attention.self.key_proj", x))
		v := f.Copy(f.Call("attention.self.value_proj", x))
		s := f.MatMul(q, f.Scale(k), c.HeadWidth(), batch, c.Heads, length, length)
		biases := own.biases(f, c, q, k, keys, queries)
		for _, bias := range biases {
			s = f.Add(s, bias)
		}
		mask := tape.Own{Shape: alloc.Shape{batch, length, length}, DType: alloc.Bool}
		s = f.Op(tape.Op{In: []tape.Tensor{s, (*ofPairs.Of(f.Tape)).mask}, Shape: s.Shape, DType: s.DType, KeepOwn: []tape.Own{mask}})
		masked := s
		s = f.Apply(drop, f.Op(tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOutput: true})) // their softmax
		y := f.Copy(f.MatMul(s, v, length, x.Shape...))                                          // heads and length change positions again
		f.Hold(append(biases, masked)...)                                                        // by variables of the code
		x = f.Call("attention.output.LayerNorm", f.Add(f.Apply(drop, f.Call("attention.output.dense", y)), x))
		y = f.Apply(c.Activation.Layer(layer.UseGELU), f.Call("intermediate.dense", x))
		y = f.Call("output.LayerNorm", f.Add(f.Apply(drop, f.Call("output.dense", y)), x))
		pairs := *ofPairs.Of(f.Tape)
		f.Hold(pairs.mask, pairs.distances) // until the last block returns
		return y
	}}
}

// biases returns the sum of the scores of distances, as one tensor, or none if there are no such scores. The sum begins with a zero,
// so that the first are copied, and variables of the code hold what was gathered until it is complete
// (DisentangledSelfAttention.disentangled_attention_bias, of transformers 5.24.0).
func (own *disentangled) biases(f *tape.Flow, c family.Transformer, q, k tape.Tensor, keys, queries string) []tape.Tensor {
	if own.span == 0 {
		return nil
	}
	vectors := f.Apply(c.Drop(), *vectorsOfDistances.Of(f.Tape))
	var sum, found []tape.Tensor
	if own.toKeys {
		found = append(found, against(f, c, q, f.Call(keys, vectors), own.span))
		sum = append(sum, addToZero(f, f.Scale(found[0])))
	}
	if own.toQueries {
		found = append(found, against(f, c, k, f.Call(queries, vectors), own.span))
		scaled := f.Scale(found[len(found)-1])
		if len(sum) == 0 {
			sum = append(sum, addToZero(f, scaled))
		} else {
			sum[0] = f.AddTo(sum[0], scaled)
		}
	}
	f.Hold(found...)
	return sum
}

// addToZero adds a tensor to the number zero, in new memory.
func addToZero(f *tape.Flow, x tape.Tensor) tape.Tensor {
	return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true})
}

// against multiplies queries or keys with the projected vectors of all distances, and gathers the
// scores of each pair of positions.
func against(f *tape.Flow, c family.Transformer, x, vectors tape.Tensor, span int) tape.Tensor {
	batch, length, all := x.Dim(0), x.Dim(1), 2*span
	repeated := f.Op(tape.Op{In: []tape.Tensor{vectors}, Shape: alloc.Shape{batch, all, c.Hidden}})
	scores := f.MatMul(x, repeated, c.HeadWidth(), batch, c.Heads, length, all)
	pairs := alloc.Shape{batch, c.Heads, length, length}
	numbers := (*ofPairs.Of(f.Tape)).distances
	o := tape.Op{In: []tape.Tensor{scores, numbers}, Shape: pairs, DType: scores.DType, Keep: []tape.Tensor{scores}, KeepOwn: []tape.Own{{Shape: alloc.Shape{length, length}, DType: alloc.Int64}}}
	if f.On() == setting.CPU && scores.DType.Bits() < 32 { // the CPU gathers into float32 first, as measured with PyTorch 2.15.0
		size, _ := pairs.Bytes(alloc.Float32) // the operation reports an overflow
		o.ForwardWorkspace = min(size, setting.MaxTotal)
	}
	return f.Op(o)
}

// masked sets the padding to zero.
type masked struct{}

func (masked) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: t.Resized(x.Shape, 1)}}})
}

// besideFirst returns the first block with a convolution of its input beside it.
func besideFirst(c family.Transformer, kernel int, block tape.Layer) tape.Layer {
	conv := layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: kernel, Padding: (kernel - 1) / 2}
	parts := tape.Sequential{tape.As("layer.0", block), tape.As("conv.conv", conv), tape.As("conv.LayerNorm", layer.LayerNorm{Size: c.Hidden})}
	return tape.Module{Name: "ConvLayer", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("layer.0", x)
		wide := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), c.Hidden, x.Dim(1)}})
		wide = f.Copy(f.Call("conv.conv", wide))
		narrow := f.Op(tape.Op{In: []tape.Tensor{wide}, Shape: slices.Clone(x.Shape), View: true})
		y = f.Call("conv.LayerNorm", f.Add(y, f.Apply(layer.GELU{}, f.Apply(c.Drop(), narrow))))
		return f.Scale(y) // the padding becomes zero
	}}
}

func readDeBERTa(c *family.Config, a *family.Model) {
	class := classes(c, "ForMaskedLM")
	readText(c, a, 512)
	a.Types = c.Whole("type_vocab_size", 0)
	if width := c.Whole("embedding_size", a.Hidden); width != a.Hidden {
		c.Unknown("embedding_size", "another width than hidden_size")
	}
	if a.MaskedLM = class == "DebertaV2ForMaskedLM"; !a.MaskedLM {
		readHead(c, a, class)
		c.Follows("pooler_hidden_size", a.Hidden)
	} else {
		c.Harmless("pooler_hidden_size")
	}
	var types []string
	var text string
	if raw := c.Value("pos_att_type"); json.Unmarshal(raw, &types) != nil && json.Unmarshal(raw, &text) == nil {
		types = strings.Split(text, "|")
	}
	own := &disentangled{
		normed: strings.Contains(c.Word("norm_rel_ebd"), "layer_norm"), apart: !c.Flag("share_att_key", false), positions: c.Flag("position_biased_input", true),
		toKeys: slices.Contains(types, "c2p"), toQueries: slices.Contains(types, "p2c"), kernel: max(0, min(c.Whole("conv_kernel_size", 0), setting.MaxField)),
	}
	if c.Flag("relative_attention", false) {
		if own.span = c.Whole("position_buckets", -1); own.span < 1 {
			own.span = setting.Or(max(0, c.Whole("max_relative_positions", -1)), a.Positions)
		}
		own.span = min(own.span, setting.MaxField/2)
	}
	a.Own = own
}
