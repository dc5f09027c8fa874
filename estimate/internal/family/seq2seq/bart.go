package seq2seq

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BART has an encoder and a decoder, LayerNorm after each part, learned positions.
var BART = &family.Family{
	Name:   "BART",
	Layers: func(c family.Transformer) []tape.Layer { return bart(c, bartStyle{normAfter: true, normFirst: true}) },
	Role:   family.Seq2Seq,
	Types:  []family.Type{{Name: "bart", Base: "BartModel", Keys: halvesKeys, Read: readBART}},
}

// MBART is BART with LayerNorm before each part.
var MBART = &family.Family{
	Name:   "mBART",
	Layers: func(c family.Transformer) []tape.Layer { return bart(c, bartStyle{normFirst: true, normLast: true}) },
	Role:   family.Seq2Seq,
	Types:  []family.Type{{Name: "mbart", Base: "MBartModel", Keys: halvesKeys, Read: readBART}},
}

// Pegasus is mBART with positions that are not learned.
var Pegasus = &family.Family{
	Name:   "Pegasus",
	Layers: func(c family.Transformer) []tape.Layer { return bart(c, bartStyle{fixed: true, normLast: true}) },
	Role:   family.Seq2Seq,
	Types:  []family.Type{{Name: "pegasus", Base: "PegasusModel", Keys: halvesKeys, Read: readBART}},
}

// Marian is BART with positions that are not learned.
var Marian = &family.Family{
	Name:   "Marian",
	Layers: func(c family.Transformer) []tape.Layer { return bart(c, bartStyle{fixed: true, normAfter: true}) },
	Role:   family.Seq2Seq,
	Types:  []family.Type{{Name: "marian", Base: "MarianModel", Keys: halvesKeys, Read: readMarian}},
}

// bartStyle says how BART and its successors differ.
type bartStyle struct{ normAfter, normFirst, normLast, fixed bool }

// bart builds BART, whose norms follow the sums, and its successors.
func bart(c family.Transformer, style bartStyle) []tape.Layer {
	c.NormAfter = style.normAfter
	dec := c.Half()
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	half := func(embed, blocks tape.Layer, each bool) tape.Sequential {
		var positions tape.Layer = family.Positions{Num: c.Positions + family.OptPadding, Dim: c.Hidden, Each: each, Padding: family.OptPadding}
		if style.fixed {
			positions = fixedPositions{Num: c.Positions, Dim: c.Hidden, upTo: true}
		}
		s := tape.Sequential{tape.As("embed_tokens", embed), tape.As("embed_positions", positions)}
		if style.normFirst {
			s = append(s, tape.As("layernorm_embedding", layer.LayerNorm{Size: c.Hidden}))
		}
		s = append(s, tape.Inline(c.Drop()), tape.As("layers", blocks))
		if style.normLast {
			s = append(s, tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}))
		}
		return s
	}
	encoder := half(embed, tape.Repeat{N: c.Blocks, Layer: seqBlock(c, false, false)}, true)
	decoder := half(tiedEmbedding{embed, "model.encoder.embed_tokens.weight"}, tape.Repeat{N: dec.Blocks, Layer: seqBlock(dec, true, false)}, false)
	layers := []tape.Layer{tape.As("model", encoderDecoder{encoder, decoder})}
	if c.NoHead {
		return layers
	}
	return append(layers, tape.As("lm_head", biasBuffer{layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns, Tied: "model.encoder.embed_tokens.weight"}}))
}

// biasBuffer is a head with the constant that BART adds to the logits.
type biasBuffer struct{ layer.Linear }

func (biasBuffer) Kind() string { return "Linear" }

func (l biasBuffer) Declare(d *tape.Declaration) {
	l.Linear.Declare(d)
	d.Buffer("final_logits_bias", 1, l.Out)
}

func (l biasBuffer) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := l.Linear.Forward(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, PassGrad: true})
}

func readBART(c *family.Config, a *family.Model) {
	bartSettings(c, a, c.Named("ForConditionalGeneration"))
}

func readMarian(c *family.Config, a *family.Model) {
	if !c.Flag("share_encoder_decoder_embeddings", true) {
		c.Unknown("share_encoder_decoder_embeddings", "false")
	}
	bartSettings(c, a, "MarianMTModel")
	c.Follows("decoder_vocab_size", a.Vocab)
}

func bartSettings(c *family.Config, a *family.Model, head string) {
	class := c.Class(head)
	a.NoHead = class == c.Base
	halvesSettings(c, a)
	c.Number(&a.Positions, "max_position_embeddings", 1024)
}
