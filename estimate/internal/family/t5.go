package family

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// T5: an encoder and a decoder, RMSNorm, biases of scores by distance.
var T5 = register(&Family{
	Name:   "T5",
	layers: Transformer.t5,
	role:   seq2Seq,
	Types: []Type{
		{Name: "t5", Base: "T5Model", Keys: t5Keys, Read: readT5},
		{Name: "mt5", Base: "MT5Model", Keys: t5Keys, Read: readMT5},
	},
})

// t5 builds T5: an encoder and a decoder whose scores have learned biases by distance.
func (c Transformer) t5() []tape.Layer {
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	layers := []tape.Layer{encoderDecoder{
		encoder: c.t5Stack(embed, false),
		decoder: c.half().t5Stack(tiedEmbedding{embed, "encoder.embed_tokens.weight"}, true),
	}}
	layers[0] = tape.Inlined{Layer: layers[0]}
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns}
	if c.Tied {
		layers = append(layers, tape.Inlined{Layer: layer.Multiple{}})
		head.Tied = "encoder.embed_tokens.weight"
	}
	return append(layers, tape.Named{Name: "lm_head", Layer: head})
}

func (c Transformer) t5Stack(embed tape.Layer, decoder bool) tape.Layer {
	return tape.Sequential{
		tape.Named{Name: "embed_tokens", Layer: embed},
		tape.Named{Name: "dropout", Layer: c.dropout()},
		tape.Named{Name: "block", Layer: tape.Repeat{N: c.Blocks, Layer: c.t5Block(decoder)}},
		tape.Named{Name: "final_layer_norm", Layer: layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}},
		tape.Inlined{Layer: c.dropout()},
	}
}

// t5Block is a block; all blocks of a stack have the same biases.
func (c Transformer) t5Block(decoder bool) tape.Layer {
	part := func(name string, l tape.Layer) tape.Layer {
		return tape.Sequential{tape.Skip(tape.Named{Name: "layer_norm", Layer: layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}}, tape.Named{Name: name, Layer: l}, tape.Named{Name: "dropout", Layer: c.dropout()})}
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
	return decoderBlock{tape.Sequential{tape.Named{Name: "layer", Layer: append(parts, part("DenseReluDense", c.t5MLP()))}}}
}

func (c Transformer) t5MLP() tape.Layer {
	in := layer.Linear{In: c.Hidden, Out: c.FFN, NoBias: true, Split: nn.ByColumns}
	out := layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: nn.ByRows}
	if c.GatedFFN {
		return tape.Sequential{
			tape.Inlined{Layer: gate{in, c.Activation.Layer(layer.UseNewGELU)}},
			tape.Named{Name: "dropout", Layer: c.dropout()},
			tape.Named{Name: "wo", Layer: out},
		}
	}
	return tape.Sequential{
		tape.Named{Name: "wi", Layer: in},
		tape.Named{Name: "act", Layer: c.Activation.Layer(layer.UseReLU)},
		tape.Named{Name: "dropout", Layer: c.dropout()},
		tape.Named{Name: "wo", Layer: out},
	}
}

// gate is act(wi_0(x)) * wi_1(x).
type gate struct{ in, act tape.Layer }

func (l gate) Declare(d *tape.Declaration) {
	d.Layer("wi_0", l.in)
	d.Layer("act", l.act)
	d.Layer("wi_1", l.in)
}

func (l gate) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := t.Call("wi_0", l.in, x)
	if err == nil {
		y, err = t.Call("act", l.act, y)
	}
	if err == nil {
		x, err = t.Call("wi_1", l.in, x)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Mul(t, y, x)
}

var t5Keys = map[string]string{"d_model": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "d_ff": "intermediate_size", "d_kv": "head_dim", "num_decoder_layers": "decoder_layers"}

func readT5(c *Config, a *Model) { c.t5(a, "T5ForConditionalGeneration") }

func readMT5(c *Config, a *Model) { c.t5(a, "MT5ForConditionalGeneration") }

func (c *Config) t5(a *Model, head string) {
	class := c.class(head)
	c.number(&a.Hidden, "d_model", 0)
	c.number(&a.Blocks, "num_layers", 0)
	c.number(&a.Heads, "num_heads", 0)
	c.number(&a.HeadSize, "d_kv", 64)
	c.number(&a.FFN, "d_ff", 0)
	c.number(&a.Vocab, "vocab_size", 0)
	c.number(&a.Buckets, "relative_attention_num_buckets", 32)
	a.NoHead, a.Tied, a.Dropout = class == c.Base, true, c.dropout("dropout_rate") // tied whatever the file says
	name := c.text("feed_forward_proj")
	if name, a.GatedFFN = strings.CutPrefix(name, "gated-"); a.GatedFFN && name == "gelu" {
		name = "gelu_new" // as T5 1.1 has it
	}
	c.activation(a, name, "relu")
	c.number(&a.DecoderBlocks, "num_decoder_layers", a.Blocks)
}
