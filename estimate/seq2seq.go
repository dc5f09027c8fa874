package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// encoderDecoder runs an encoder over the model's first input and a decoder over its second. The decoder's
// cross-attention reads what the encoder returns.
type encoderDecoder struct{ encoder, decoder Layer }

// Declare implements Layer.
func (l encoderDecoder) Declare(d *Declaration) {
	d.Layer("encoder", l.encoder)
	d.Layer("decoder", l.decoder)
}

// Forward implements Layer.
func (l encoderDecoder) Forward(t *Tape, x Tensor) (Tensor, error) {
	text, err := t.Input(1)
	if err != nil {
		return Tensor{}, err
	}
	t.uncached = true // a cache is the decoder's
	encoded, err := t.Call("encoder", l.encoder, x)
	t.uncached = false
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("decoder", l.decoder, text, encoded)
}

// tiedEmbedding is an Embedding whose weight is another's.
type tiedEmbedding struct {
	Embedding
	to string
}

// Kind names the row.
func (tiedEmbedding) Kind() string { return "Embedding" }

// Declare implements Layer.
func (l tiedEmbedding) Declare(d *Declaration) {
	if d.want("Num", l.Num, 1) && d.want("Dim", l.Dim, 1) {
		d.Add(Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split, Tied: l.to})
	}
}

// half are the numbers of the decoder of an encoder and decoder.
func (c Transformer) half() Transformer {
	c.Blocks, c.Heads, c.FFN = or(c.DecoderBlocks, c.Blocks), or(c.DecoderHeads, c.Heads), or(c.DecoderFFN, c.FFN)
	return c
}

// barts has the families that are BART but for these.
var barts = map[Family]struct{ normAfter, normFirst, normLast, fixed bool }{
	BART:    {normAfter: true, normFirst: true},
	MBART:   {normFirst: true, normLast: true},
	Pegasus: {fixed: true, normLast: true},
	Marian:  {fixed: true, normAfter: true},
}

// bart builds BART, whose norms follow the sums, and its successors.
func (c Transformer) bart() []Layer {
	style := barts[c.Family]
	c.NormAfter = style.normAfter
	dec := c.half()
	embed := Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}
	half := func(embed, blocks Layer, each bool) Sequential {
		var places Layer = positions{Num: c.Positions + optPadding, Dim: c.Hidden, each: each, padding: optPadding}
		if style.fixed {
			places = fixedPositions{Num: c.Positions, Dim: c.Hidden, upTo: true}
		}
		s := Sequential{Named{"embed_tokens", embed}, Named{"embed_positions", places}}
		if style.normFirst {
			s = append(s, Named{"layernorm_embedding", LayerNorm{Size: c.Hidden}})
		}
		s = append(s, inline{c.dropout()}, Named{"layers", blocks})
		if style.normLast {
			s = append(s, Named{"layer_norm", LayerNorm{Size: c.Hidden}})
		}
		return s
	}
	encoder := half(embed, Repeat{N: c.Blocks, Layer: c.seqBlock(false)}, true)
	decoder := half(tiedEmbedding{embed, "model.encoder.embed_tokens.weight"}, Repeat{N: dec.Blocks, Layer: dec.seqBlock(true)}, false)
	layers := []Layer{Named{"model", encoderDecoder{encoder, decoder}}}
	if c.NoHead {
		return layers
	}
	return append(layers, Named{"lm_head", biasBuffer{Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: ByColumns, Tied: "model.encoder.embed_tokens.weight"}}})
}

// biasBuffer is a head with the constant that BART adds to the logits.
type biasBuffer struct{ Linear }

// Kind names the row.
func (biasBuffer) Kind() string { return "Linear" }

// Declare implements Layer.
func (l biasBuffer) Declare(d *Declaration) {
	l.Linear.Declare(d)
	d.Buffer("final_logits_bias", 1, l.Out)
}

// Forward implements Layer.
func (l biasBuffer) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := l.Linear.Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape, PassGrad: true})
}

// whisper builds Whisper, which hears spectra and writes text.
func (c Transformer) whisper() []Layer {
	dec := c.half()
	encoder := Sequential{
		Named{"conv1", Conv1d{In: c.Channels, Out: c.Hidden, Kernel: 3, Padding: 1}},
		inline{GELU{}},
		Named{"conv2", Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: 3, Stride: 2, Padding: 1}},
		inline{GELU{}},
		inline{swapped{}},
		Named{"embed_positions", fixedPositions{Num: c.SourceLength, Dim: c.Hidden}},
		inline{c.dropout()},
		Named{"layers", Repeat{N: c.Blocks, Layer: c.seqBlock(false)}},
		Named{"layer_norm", LayerNorm{Size: c.Hidden}},
	}
	decoder := Sequential{
		Named{"embed_tokens", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		Named{"embed_positions", positions{Num: c.Positions, Dim: c.Hidden, each: true}},
		inline{c.dropout()},
		Named{"layers", Repeat{N: dec.Blocks, Layer: dec.seqBlock(true)}},
		Named{"layer_norm", LayerNorm{Size: c.Hidden}},
	}
	layers := []Layer{Named{"model", encoderDecoder{encoder, decoder}}}
	if c.NoHead {
		return layers
	}
	return append(layers, Named{"proj_out", Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: ByColumns, Tied: "model.decoder.embed_tokens.weight"}})
}

// seqBlock is a block of BART or Whisper; that of a decoder has cross-attention.
func (c Transformer) seqBlock(decoder bool) Layer {
	parts := []struct {
		norm string
		body Sequential
	}{{"self_attn_layer_norm", Sequential{Named{"self_attn", c.seqAttention(false)}, inline{c.dropout()}}}}
	if decoder {
		parts = append(parts, parts[0])
		parts[1].norm, parts[1].body = "encoder_attn_layer_norm", Sequential{Named{"encoder_attn", c.seqAttention(true)}, inline{c.dropout()}}
	}
	mlp := MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, names: mlpNames}
	parts = append(parts, parts[0])
	parts[len(parts)-1].norm, parts[len(parts)-1].body = "final_layer_norm", Sequential{inline{mlp}, inline{c.dropout()}}
	var block Sequential
	for _, p := range parts {
		norm := Named{p.norm, LayerNorm{Size: c.Hidden}}
		if c.NormAfter {
			block = append(block, residual(p.body...), norm)
		} else {
			block = append(block, residual(append(Sequential{norm}, p.body...)...))
		}
	}
	return decoderBlock{block}
}

func (c Transformer) seqAttention(cross bool) Layer {
	return Attention{
		Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.ScoreDropout, Cross: cross,
		joined: c.Family == Whisper, scaled: c.Family == Whisper, noKeyBias: c.Family == Whisper,
		names: &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj"},
	}
}

// fixedPositions adds a table of positions that is not trained.
type fixedPositions struct {
	Num, Dim int
	upTo     bool // a text may have fewer
}

// Kind names the row.
func (fixedPositions) Kind() string { return "Embedding" }

// Declare implements Layer.
func (l fixedPositions) Declare(d *Declaration) {
	d.modules[d.current].frozen = true
	Embedding{Num: l.Num, Dim: l.Dim}.Declare(d)
}

// Forward implements Layer.
func (l fixedPositions) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	if n := x.Shape[1]; n > l.Num || n != l.Num && !l.upTo {
		return Tensor{}, t.Errorf("input %v has another length than the model's %d positions", x.Shape, l.Num)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, PassGrad: true})
}

// swapped is its input with the last two dimensions in each other's place, as a view.
type swapped struct{}

// Declare implements Layer.
func (swapped) Declare(*Declaration) {}

// Forward implements Layer.
func (swapped) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, channels, length)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: t.resized(x.Shape, x.Shape[2], x.Shape[1]), View: true})
}
