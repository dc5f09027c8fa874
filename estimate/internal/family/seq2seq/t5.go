package seq2seq

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// T5 has an encoder and a decoder, RMSNorm, biases of scores by distance.
var T5 = &family.Family{
	Name:   "T5",
	Layers: t5,
	Role:   family.Seq2Seq,
	Types: []family.Type{
		{Name: "t5", Base: "T5Model", Text: true, Keys: t5Keys, Read: readT5},
		{Name: "mt5", Base: "MT5Model", Keys: t5Keys, Read: readMT5},
	},
}

// t5 builds T5: an encoder and a decoder whose scores have learned biases by distance.
func t5(c family.Transformer) []tape.Layer {
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	layers := []tape.Layer{encoderDecoder{
		encoder: t5Stack(c, embed, false),
		decoder: t5Stack(c.Half(), tiedEmbedding{embed, "encoder.embed_tokens.weight"}, true),
	}}
	layers[0] = tape.Inline(layers[0])
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
	if c.Tied {
		layers = append(layers, tape.Inline(layer.Multiple{}))
		head.Tied = "encoder.embed_tokens.weight"
	}
	return append(layers, tape.As("lm_head", head))
}

func t5Stack(c family.Transformer, embed tape.Layer, decoder bool) tape.Layer {
	return tape.Sequential{
		tape.As("embed_tokens", embed),
		tape.As("dropout", c.Drop()),
		tape.As("block", tape.Repeat{N: c.Blocks, Layer: t5Block(c, decoder)}),
		tape.As("final_layer_norm", layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}),
		tape.Inline(c.Drop()),
	}
}

// t5Block returns a block. All blocks of a stack share one RelativeBias.
func t5Block(c family.Transformer, decoder bool) tape.Layer {
	part := func(name string, l tape.Layer) tape.Layer {
		return tape.Sequential{tape.Skip(tape.As("layer_norm", layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}), tape.As(name, l), tape.As("dropout", c.Drop()))}
	}
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Plain: c.Plain, Dropout: c.Dropout,
		Names: &layer.AttentionNames{Q: "q", K: "k", V: "v", Out: "o"},
	}
	self, cross := attention, attention
	self.Bias = &layer.RelativeBias{Buckets: c.Buckets, Causal: decoder}
	cross.Cross, cross.Zeros = true, true
	parts := tape.Sequential{part("SelfAttention", self)}
	if decoder {
		parts = append(parts, part("EncDecAttention", cross))
	}
	return family.DecoderBlock{Sequential: tape.Sequential{tape.As("layer", append(parts, part("DenseReluDense", t5MLP(c))))}}
}

func t5MLP(c family.Transformer) tape.Layer {
	in := layer.Linear{In: c.Hidden, Out: c.FFN, NoBias: true, Split: layer.ByColumns}
	out := layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: layer.ByRows}
	if c.GatedFFN {
		return tape.Sequential{
			tape.Inline(gate{in, c.Activation.Layer(layer.UseNewGELU)}),
			tape.As("dropout", c.Drop()),
			tape.As("wo", out),
		}
	}
	return tape.Sequential{
		tape.As("wi", in),
		tape.As("act", c.Activation.Layer(layer.UseReLU)),
		tape.As("dropout", c.Drop()),
		tape.As("wo", out),
	}
}

// gate is act(wi_0(x)) * wi_1(x).
type gate struct{ in, act tape.Layer }

func (l gate) Declare(d *tape.Declaration) {
	d.Layer("wi_0", l.in)
	d.Layer("act", l.act)
	d.Layer("wi_1", l.in)
}

func (l gate) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := t.Call("wi_0", l.in, x)
	y = t.Call("act", l.act, y)
	x = t.Call("wi_1", l.in, x)
	return t.Mul(y, x)
}

var t5Keys = map[string]string{"d_model": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "d_ff": "intermediate_size", "d_kv": "head_dim", "num_decoder_layers": "decoder_layers"}

func readT5(c *family.Config, a *family.Model) {
	t5Settings(c, a, true)
}

func readMT5(c *family.Config, a *family.Model) {
	t5Settings(c, a, false)
}

// t5Settings reads what T5 and mT5 have in common. Checkpoints of mT5, and of T5 since 1.1, have an
// output head of their own, which from_pretrained keeps. For a new model, transformers 5 ties the
// head whatever tie_word_embeddings says: it always writes true, with scale_decoder_outputs for T5.
// The weights tell which it is; without them, it is taken to be a checkpoint's.
func t5Settings(c *family.Config, a *family.Model, tied bool) {
	class := c.Class(c.Named("ForConditionalGeneration"))
	c.Number(&a.Hidden, "d_model", 0)
	c.Number(&a.Blocks, "num_layers", 0)
	c.Number(&a.Heads, "num_heads", 0)
	c.Number(&a.HeadSize, "d_kv", 64)
	c.Number(&a.FFN, "d_ff", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&a.Buckets, "relative_attention_num_buckets", 32)
	if c.WrittenBy() < 5 && c.Given("tie_word_embeddings") {
		tied = c.Flag("tie_word_embeddings", tied)
	}
	a.Stored = func(a *family.Model, has func(tensor string) bool) { a.Tied = !has("lm_head.weight") }
	a.NoHead, a.Tied, a.Dropout = class == c.Base, tied && c.Flag("scale_decoder_outputs", true), c.Dropout("dropout_rate")
	name := c.Word("feed_forward_proj")
	if name, a.GatedFFN = strings.CutPrefix(name, "gated-"); a.GatedFFN && name == "gelu" {
		name = "gelu_new" // as T5 1.1 has it
	}
	c.Activation(a, name, "relu")
	c.Number(&a.DecoderBlocks, "num_decoder_layers", a.Blocks)
}
