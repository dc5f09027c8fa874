package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MPNet is BERT with biases of scores by distance, without token types.
var MPNet = &family.Family{
	Name:    "MPNet",
	Padding: 2,
	Layers:  mpNet,
	Role:    family.Encoder,
	Types:   []family.Type{{Name: "mpnet", Base: "MPNetModel", Read: readMPNet}},
}

// mpNet builds MPNet, a BERT whose scores have learned biases by distance.
func mpNet(c family.Transformer) []tape.Layer {
	layers := text{
		added: []tape.Layer{
			tape.As("position_embeddings", family.Positions{Num: c.Positions, Dim: c.Hidden, Each: true, Padding: 2}), tape.As("position_ids", counted{c.Positions, []string{"numbers"}}),
		},
		first: []tape.Layer{tape.Inline(biasesBefore{c.Buckets, c.Heads})}, blocks: c.Blocks, block: mpNetBlock(c),
	}.layers(c)
	switch {
	case c.Classes != 0 && c.Pooler:
		return append(append(layers, c.Pooled()), classifier(c, c.Drop())...)
	case c.Classes != 0 && c.NoHead:
		return append(layers, classifier(c, c.Drop())...)
	case c.Classes != 0:
		return append(layers, firstClassifier(c, layer.Tanh{}))
	case c.MaskedLM:
		return append(layers, tape.As("lm_head", predictor{act: layer.GELU{}, tied: "..embeddings.word_embeddings.weight", names: [4]string{"dense", "", "layer_norm", "decoder"}, apart: true}.layers(c)))
	case !c.NoHead:
		layers = append(layers, c.Pooled())
	}
	return layers
}

func mpNetBlock(c family.Transformer) tape.Layer {
	linear := func(in, out int) layer.Linear { return layer.Linear{In: in, Out: out} }
	norm, drop := layer.LayerNorm{Size: c.Hidden}, c.Drop()
	parts := tape.Sequential{
		tape.As("attention.attn.q", linear(c.Hidden, c.Hidden)), tape.As("attention.attn.k", linear(c.Hidden, c.Hidden)),
		tape.As("attention.attn.v", linear(c.Hidden, c.Hidden)), tape.As("attention.attn.o", linear(c.Hidden, c.Hidden)),
		tape.As("attention.LayerNorm", norm),
		tape.As("intermediate.dense", linear(c.Hidden, c.FFN)), tape.As("output.dense", linear(c.FFN, c.Hidden)), tape.As("output.LayerNorm", norm),
	}
	return tape.Module{Name: "MPNetLayer", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		batch, length := x.Dim(0), x.Dim(1)
		q, k, v := f.Call("attention.attn.q", x), f.Call("attention.attn.k", x), f.Call("attention.attn.v", x)
		s := f.Scale(f.MatMul(q, k, c.HeadWidth(), batch, c.Heads, length, length))
		s = f.Op(tape.Op{In: []tape.Tensor{s, *spread.Of(f.Tape)}, Shape: s.Shape, InPlace: true, PassGrad: true})
		s = f.Apply(drop, f.Op(tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOutput: true}))
		y := f.Copy(f.MatMul(s, v, length, x.Shape...)) // heads and length change positions again
		x = f.Call("attention.LayerNorm", f.Add(f.Apply(drop, f.Call("attention.attn.o", y)), x))
		y = f.Apply(c.Activation.Layer(layer.UseGELU), f.Call("intermediate.dense", x))
		return f.Call("output.LayerNorm", f.Add(f.Apply(drop, f.Call("output.dense", y)), x))
	}}
}

// biasesBefore makes the biases for all blocks, once for each sequence.
type biasesBefore struct{ buckets, heads int }

func (l biasesBefore) table() layer.Embedding { return layer.Embedding{Num: l.buckets, Dim: l.heads} }

func (l biasesBefore) Declare(d *tape.Declaration) { d.Layer("relative_attention_bias", l.table()) }

func (l biasesBefore) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	batch, length := x.Shape[0], x.Shape[1]
	numbers := t.Const(alloc.Int64, length, length)
	found := t.Call("relative_attention_bias", l.table(), numbers)
	*spread.Of(t) = t.Op(tape.Op{In: []tape.Tensor{found}, Shape: alloc.Shape{batch, l.heads, length, length}})
	return x
}

// spread holds the score biases for each sequence, which all blocks of MPNet add.
var spread tape.Slot[tape.Tensor]

func readMPNet(c *family.Config, a *family.Model) {
	class := classes(c, "ForMaskedLM")
	readText(c, a, 512)
	if a.MaskedLM = class == "MPNetForMaskedLM"; !a.MaskedLM {
		readHead(c, a, class)
	}
	c.Number(&a.Buckets, "relative_attention_num_buckets", 32)
}
