package seq2seq

import (
	"fmt"
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
		{Name: "umt5", Base: "UMT5Model", Keys: t5Keys, Read: readUMT5},
	},
}

// t5Encoder is the encoder of a T5 alone.
var t5Encoder = &family.Family{Name: "T5's encoder", Layers: t5, Role: family.Encoder}

// biasedBlocks is the setting of UMT5, in which each block has biases by distance of its own.
type biasedBlocks struct{}

// t5 builds T5: an encoder and a decoder whose scores have learned biases by distance.
func t5(c family.Transformer) []tape.Layer {
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	var body tape.Layer = tape.Sequential{tape.As("encoder", t5Stack(c, embed, false))}
	if !c.Family.Encoder() {
		body = encoderDecoder{
			encoder: t5Stack(c, embed, false),
			decoder: t5Stack(c.Half(), tiedEmbedding{embed, "..encoder.embed_tokens.weight"}, true),
		}
	}
	if c.Classes != 0 {
		return t5Classifier(c, body)
	}
	layers := []tape.Layer{tape.Inline(body)}
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
	if c.Tied {
		layers = append(layers, tape.Inline(layer.Multiple{}))
		head.Tied = ".encoder.embed_tokens.weight"
	}
	return append(layers, tape.As("lm_head", head))
}

// t5Classifier returns the body and its classifier: one for the tokens of an encoder, one for the
// last token of a decoder with a Pooler before it, or one for each token of a decoder.
func t5Classifier(c family.Transformer, body tape.Layer) []tape.Layer {
	drop := (family.Transformer{Dropout: c.HeadDropout}).Drop()
	last := layer.Linear{In: c.Hidden, Out: c.Classes}
	switch {
	case c.Family.Encoder():
		return []tape.Layer{tape.As("transformer", body), tape.As("dropout", drop), tape.As("classifier", last)}
	case c.Pooler:
		return []tape.Layer{tape.As("transformer", body), tape.Inline(family.First{}), tape.As("classification_head", tape.Sequential{
			tape.Inline(drop), tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.Inline(layer.Tanh{}),
			tape.Inline(drop), tape.As("out_proj", last),
		})}
	}
	return []tape.Layer{tape.Inline(body), tape.As("qa_outputs", last)}
}

func t5Stack(c family.Transformer, embed tape.Layer, decoder bool) tape.Layer {
	return tape.Sequential{
		tape.As("embed_tokens", embed),
		tape.As("dropout", c.Drop()),
		tape.As("block", t5Blocks(c, decoder)),
		tape.As("final_layer_norm", layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}),
		tape.Inline(c.Drop()),
	}
}

// t5Blocks returns the blocks of a stack. Only the first has a table of biases, unless each has.
func t5Blocks(c family.Transformer, decoder bool) tape.Layer {
	if family.Own[biasedBlocks](c) == nil {
		return tape.Repeat{N: c.Blocks, Layer: t5Block(c, decoder)}
	}
	var blocks tape.Sequential
	for range min(max(0, c.Blocks), family.MaxBlocks) {
		blocks = append(blocks, t5Block(c, decoder))
	}
	return blocks
}

// t5Block returns a block. Its copies share one RelativeBias.
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

func readUMT5(c *family.Config, a *family.Model) {
	t5Settings(c, a, true)
	a.Own = &biasedBlocks{}
}

// t5Settings reads what T5 and its successors have in common. Checkpoints of mT5, and of T5 since 1.1, have an
// output head of their own, which from_pretrained keeps. For a new model, transformers 5 ties the
// head whatever tie_word_embeddings says: it always writes true, with scale_decoder_outputs for T5.
// The tensors of the files decide (Stored); without them, the head is taken to be a checkpoint's.
func t5Settings(c *family.Config, a *family.Model, tied bool) {
	head := c.Named("ForConditionalGeneration")
	tokens, texts, spans := c.Named("ForTokenClassification"), c.Named("ForSequenceClassification"), c.Named("ForQuestionAnswering")
	class := c.Class(head, c.Named("EncoderModel"), tokens, texts, spans)
	switch class {
	case c.Named("EncoderModel"):
		a.Family = t5Encoder
	case tokens:
		a.Family, a.Classes = t5Encoder, c.Labels()
	case texts:
		a.Classes, a.Pooler = c.Labels(), true
	case spans:
		a.Classes = c.Labels()
	}
	a.HeadDropout = c.Ratio("classifier_dropout", 0)
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
	a.NoHead, a.Tied, a.Dropout = class != head, tied && c.Flag("scale_decoder_outputs", true), c.Dropout("dropout_rate")
	if class == head && !a.Tied {
		a.Assumed = append(a.Assumed, fmt.Sprintf("the output head is counted with a weight of its own, as published checkpoints have it: %d parameters; a model that transformers 5 makes anew ties it to the embeddings, and has none of them", int64(a.Vocab)*int64(a.Hidden)))
	}
	name, gated := strings.CutPrefix(c.Word("feed_forward_proj"), "gated-")
	if gated && name == "gelu" {
		name = "gelu_new" // as T5 1.1 has it
	}
	if act := c.Word("dense_act_fn"); act != "" { // transformers 4.20 and later write what they derived, and read it first
		name = act
	}
	a.GatedFFN = c.Flag("is_gated_act", gated)
	c.Activation(a, name, "relu")
	c.Number(&a.DecoderBlocks, "num_decoder_layers", a.Blocks)
}
