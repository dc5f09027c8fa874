package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// BART: an encoder and a decoder, LayerNorm after each part, learned positions.
var BART = register(&Family{
	Name:   "BART",
	layers: func(c Transformer) []tape.Layer { return c.bart(bartStyle{normAfter: true, normFirst: true}) },
	role:   seq2Seq,
	Types: []Type{
		{Name: "bart", Base: "BartModel", Keys: halvesKeys, Read: readBART},
	},
})

// MBART: BART with LayerNorm before each part.
var MBART = register(&Family{
	Name:   "mBART",
	layers: func(c Transformer) []tape.Layer { return c.bart(bartStyle{normFirst: true, normLast: true}) },
	role:   seq2Seq,
	Types: []Type{
		{Name: "mbart", Base: "MBartModel", Keys: halvesKeys, Read: readMBART},
	},
})

// Pegasus: mBART with positions that are not learned.
var Pegasus = register(&Family{
	Name:   "Pegasus",
	layers: func(c Transformer) []tape.Layer { return c.bart(bartStyle{fixed: true, normLast: true}) },
	role:   seq2Seq,
	Types: []Type{
		{Name: "pegasus", Base: "PegasusModel", Keys: halvesKeys, Read: readPegasus},
	},
})

// Marian: BART with positions that are not learned.
var Marian = register(&Family{
	Name:   "Marian",
	layers: func(c Transformer) []tape.Layer { return c.bart(bartStyle{fixed: true, normAfter: true}) },
	role:   seq2Seq,
	Types: []Type{
		{Name: "marian", Base: "MarianModel", Keys: halvesKeys, Read: readMarian},
	},
})

// bartStyle is in what BART and its successors differ.
type bartStyle struct{ normAfter, normFirst, normLast, fixed bool }

// bart builds BART, whose norms follow the sums, and its successors.
func (c Transformer) bart(style bartStyle) []tape.Layer {
	c.NormAfter = style.normAfter
	dec := c.half()
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	half := func(embed, blocks tape.Layer, each bool) tape.Sequential {
		var places tape.Layer = positions{Num: c.Positions + optPadding, Dim: c.Hidden, each: each, padding: optPadding}
		if style.fixed {
			places = fixedPositions{Num: c.Positions, Dim: c.Hidden, upTo: true}
		}
		s := tape.Sequential{tape.Named{Name: "embed_tokens", Layer: embed}, tape.Named{Name: "embed_positions", Layer: places}}
		if style.normFirst {
			s = append(s, tape.Named{Name: "layernorm_embedding", Layer: layer.LayerNorm{Size: c.Hidden}})
		}
		s = append(s, tape.Inlined{Layer: c.dropout()}, tape.Named{Name: "layers", Layer: blocks})
		if style.normLast {
			s = append(s, tape.Named{Name: "layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}})
		}
		return s
	}
	encoder := half(embed, tape.Repeat{N: c.Blocks, Layer: c.seqBlock(false, false)}, true)
	decoder := half(tiedEmbedding{embed, "model.encoder.embed_tokens.weight"}, tape.Repeat{N: dec.Blocks, Layer: dec.seqBlock(true, false)}, false)
	layers := []tape.Layer{tape.Named{Name: "model", Layer: encoderDecoder{encoder, decoder}}}
	if c.NoHead {
		return layers
	}
	return append(layers, tape.Named{Name: "lm_head", Layer: biasBuffer{layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns, Tied: "model.encoder.embed_tokens.weight"}}})
}

// biasBuffer is a head with the constant that BART adds to the logits.
type biasBuffer struct{ layer.Linear }

// Kind names the row.
func (biasBuffer) Kind() string { return "Linear" }

func (l biasBuffer) Declare(d *tape.Declaration) {
	l.Linear.Declare(d)
	d.Buffer("final_logits_bias", 1, l.Out)
}

func (l biasBuffer) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := l.Linear.Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, PassGrad: true})
}

func readBART(c *Config, a *Model) {
	c.bart(a, "BartForConditionalGeneration")
}

func readMBART(c *Config, a *Model) {
	c.bart(a, "MBartForConditionalGeneration")
}

func readPegasus(c *Config, a *Model) {
	c.bart(a, "PegasusForConditionalGeneration")
}

func readMarian(c *Config, a *Model) {
	if !c.flag("share_encoder_decoder_embeddings", true) {
		c.unknown("share_encoder_decoder_embeddings", "false")
	}
	c.bart(a, "MarianMTModel")
}

func (c *Config) bart(a *Model, head string) {
	class := c.class(head)
	a.NoHead = class == c.Base
	c.halves(a)
	c.number(&a.Positions, "max_position_embeddings", 1024)
}
