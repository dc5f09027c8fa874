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
	Types: []family.Type{
		{Name: "bart", Base: "BartModel", Keys: halvesKeys, Read: readBART},
		{Name: "plbart", Base: "PLBartModel", Keys: halvesKeys, Read: readBART},
	},
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
	Name: "Pegasus",
	Layers: func(c family.Transformer) []tape.Layer {
		return bart(c, bartStyle{positions: pegasusPositions, normLast: true})
	},
	Role:  family.Seq2Seq,
	Types: []family.Type{{Name: "pegasus", Base: "PegasusModel", Keys: halvesKeys, Read: readBART}},
}

// Marian is BART with positions that are not learned.
var Marian = &family.Family{
	Name: "Marian",
	Layers: func(c family.Transformer) []tape.Layer {
		return bart(c, bartStyle{positions: pegasusPositions, normAfter: true})
	},
	Role:  family.Seq2Seq,
	Types: []family.Type{{Name: "marian", Base: "MarianModel", Keys: halvesKeys, Read: readMarian}},
}

// Blenderbot is mBART without a norm of the embeddings, and without positions for padding.
var Blenderbot = &family.Family{
	Name: "Blenderbot",
	Layers: func(c family.Transformer) []tape.Layer {
		return bart(c, bartStyle{positions: blenderbotPositions, normLast: true})
	},
	Role:  family.Seq2Seq,
	Types: []family.Type{{Name: "blenderbot", Base: "BlenderbotModel", Keys: halvesKeys, Read: readBART}},
}

// BlenderbotSmall is BART without positions for padding.
var BlenderbotSmall = &family.Family{
	Name: "Blenderbot small",
	Layers: func(c family.Transformer) []tape.Layer {
		return bart(c, bartStyle{positions: blenderbotPositions, normAfter: true, normFirst: true})
	},
	Role:  family.Seq2Seq,
	Types: []family.Type{{Name: "blenderbot-small", Base: "BlenderbotSmallModel", Keys: halvesKeys, Read: readBART}},
}

// M2M100 is mBART without a norm of the embeddings, whose positions are a buffer and whose head adds nothing (NLLB).
var M2M100 = &family.Family{
	Name: "M2M-100",
	Layers: func(c family.Transformer) []tape.Layer {
		return bart(c, bartStyle{positions: m2mPositions, normLast: true, plainHead: true})
	},
	Role:  family.Seq2Seq,
	Types: []family.Type{{Name: "m2m_100", Base: "M2M100Model", Keys: halvesKeys, Read: readBART}},
}

// bartStyle says how BART and its successors differ.
type bartStyle struct {
	normAfter, normFirst, normLast bool
	positions                      func(c family.Transformer, decoder bool) tape.Layer // nil means BART's
	plainHead                      bool                                                // nothing is added to the logits
}

// bartPositions are learned, after some for padding.
func bartPositions(c family.Transformer, decoder bool) tape.Layer {
	return family.Positions{Num: c.Positions + family.OptPadding, Dim: c.Hidden, Each: !decoder, Padding: family.OptPadding}
}

func pegasusPositions(c family.Transformer, _ bool) tape.Layer {
	return fixedPositions{Num: c.Positions, Dim: c.Hidden, upTo: true}
}

func blenderbotPositions(c family.Transformer, _ bool) tape.Layer {
	return family.Positions{Num: c.Positions, Dim: c.Hidden}
}

func m2mPositions(c family.Transformer, _ bool) tape.Layer {
	return bufferedPositions{c.Positions + family.OptPadding, c.Hidden}
}

// bufferedPositions adds a vector for each position of each text, of a table that is a buffer.
type bufferedPositions struct{ Num, Dim int }

func (bufferedPositions) Kind() string { return "Embedding" }

func (l bufferedPositions) Declare(d *tape.Declaration) { d.Buffer("weights", l.Num, l.Dim) }

func (l bufferedPositions) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	vectors := t.Const(t.Activation(), x.Shape...)
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// bart builds BART, whose norms follow the sums, and its successors.
func bart(c family.Transformer, style bartStyle) []tape.Layer {
	c.NormAfter = style.normAfter
	dec := c.Half()
	embed := layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	var ofDecoder, shared tape.Layer = tiedEmbedding{embed, "model.encoder.embed_tokens.weight"}, nil
	if !c.Tied { // the table that all share is a fourth, which nothing reads
		ofDecoder, shared = embed, family.Held{Layer: embed}
	}
	positions := style.positions
	if positions == nil {
		positions = bartPositions
	}
	half := func(embed, blocks tape.Layer, decoder bool) tape.Sequential {
		s := tape.Sequential{tape.As("embed_tokens", embed), tape.As("embed_positions", positions(c, decoder))}
		if style.normFirst {
			s = append(s, tape.As("layernorm_embedding", layer.LayerNorm{Size: c.Hidden}))
		}
		s = append(s, tape.Inline(c.Drop()), tape.As("layers", blocks))
		if style.normLast {
			s = append(s, tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}))
		}
		return s
	}
	encoder := half(embed, tape.Repeat{N: c.Blocks, Layer: seqBlock(c, false, false)}, false)
	decoder := half(ofDecoder, tape.Repeat{N: dec.Blocks, Layer: seqBlock(dec, true, false)}, true)
	layers := []tape.Layer{tape.As("model", encoderDecoder{encoder: encoder, decoder: decoder, shared: shared})}
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
	if c.Tied {
		head.Tied = "model.encoder.embed_tokens.weight"
	}
	if style.plainHead {
		return append(layers, tape.As("lm_head", head))
	}
	return append(layers, tape.As("lm_head", biasBuffer{head}))
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
	if !a.Tied {
		c.Unknown("tie_word_embeddings", "false")
	}
	c.Follows("decoder_vocab_size", a.Vocab)
}

func bartSettings(c *family.Config, a *family.Model, head string) {
	class := c.Class(head)
	a.NoHead = class == c.Base
	halvesSettings(c, a)
	c.Number(&a.Positions, "max_position_embeddings", 1024)
}
