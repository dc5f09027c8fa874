package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// encoderDecoder runs an encoder over the model's first input and a decoder over its second. The decoder's
// cross-attention reads what the encoder returns.
type encoderDecoder struct{ encoder, decoder tape.Layer }

func (l encoderDecoder) Declare(d *tape.Declaration) {
	d.Layer("encoder", l.encoder)
	d.Layer("decoder", l.decoder)
}

func (l encoderDecoder) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	text, err := t.Input(1)
	if err != nil {
		return tape.Tensor{}, err
	}
	*layer.Uncached.Of(t) = true // a cache is the decoder's
	encoded, err := t.Call("encoder", l.encoder, x)
	*layer.Uncached.Of(t) = false
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call("decoder", l.decoder, text, encoded)
}

// tiedEmbedding is an Embedding whose weight is another's.
type tiedEmbedding struct {
	layer.Embedding
	to string
}

// Kind names the row.
func (tiedEmbedding) Kind() string { return "Embedding" }

func (l tiedEmbedding) Declare(d *tape.Declaration) {
	if d.Want("Num", l.Num, 1) && d.Want("Dim", l.Dim, 1) {
		d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split, Tied: l.to})
	}
}

// half are the numbers of the decoder of an encoder and decoder.
func (c Transformer) half() Transformer {
	c.Blocks, c.Heads, c.FFN = setting.Or(c.DecoderBlocks, c.Blocks), setting.Or(c.DecoderHeads, c.Heads), setting.Or(c.DecoderFFN, c.FFN)
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
func (c Transformer) bart() []tape.Layer {
	style := barts[c.Family]
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
	encoder := half(embed, tape.Repeat{N: c.Blocks, Layer: c.seqBlock(false)}, true)
	decoder := half(tiedEmbedding{embed, "model.encoder.embed_tokens.weight"}, tape.Repeat{N: dec.Blocks, Layer: dec.seqBlock(true)}, false)
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

// whisper builds Whisper, which hears spectra and writes text.
func (c Transformer) whisper() []tape.Layer {
	dec := c.half()
	encoder := tape.Sequential{
		tape.Named{Name: "conv1", Layer: layer.Conv1d{In: c.Channels, Out: c.Hidden, Kernel: 3, Padding: 1}},
		tape.Inlined{Layer: layer.GELU{}},
		tape.Named{Name: "conv2", Layer: layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: 3, Stride: 2, Padding: 1}},
		tape.Inlined{Layer: layer.GELU{}},
		tape.Inlined{Layer: swapped{}},
		tape.Named{Name: "embed_positions", Layer: fixedPositions{Num: c.SourceLength, Dim: c.Hidden}},
		tape.Inlined{Layer: c.dropout()},
		tape.Named{Name: "layers", Layer: tape.Repeat{N: c.Blocks, Layer: c.seqBlock(false)}},
		tape.Named{Name: "layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
	decoder := tape.Sequential{
		tape.Named{Name: "embed_tokens", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		tape.Named{Name: "embed_positions", Layer: positions{Num: c.Positions, Dim: c.Hidden, each: true}},
		tape.Inlined{Layer: c.dropout()},
		tape.Named{Name: "layers", Layer: tape.Repeat{N: dec.Blocks, Layer: dec.seqBlock(true)}},
		tape.Named{Name: "layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
	layers := []tape.Layer{tape.Named{Name: "model", Layer: encoderDecoder{encoder, decoder}}}
	if c.NoHead {
		return layers
	}
	return append(layers, tape.Named{Name: "proj_out", Layer: layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns, Tied: "model.decoder.embed_tokens.weight"}})
}

// seqBlock is a block of BART or Whisper; that of a decoder has cross-attention.
func (c Transformer) seqBlock(decoder bool) tape.Layer {
	parts := []struct {
		norm string
		body tape.Sequential
	}{{"self_attn_layer_norm", tape.Sequential{tape.Named{Name: "self_attn", Layer: c.seqAttention(false)}, tape.Inlined{Layer: c.dropout()}}}}
	if decoder {
		parts = append(parts, parts[0])
		parts[1].norm, parts[1].body = "encoder_attn_layer_norm", tape.Sequential{tape.Named{Name: "encoder_attn", Layer: c.seqAttention(true)}, tape.Inlined{Layer: c.dropout()}}
	}
	mlp := layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: layer.MlpNames}
	parts = append(parts, parts[0])
	parts[len(parts)-1].norm, parts[len(parts)-1].body = "final_layer_norm", tape.Sequential{tape.Inlined{Layer: mlp}, tape.Inlined{Layer: c.dropout()}}
	var block tape.Sequential
	for _, p := range parts {
		norm := tape.Named{Name: p.norm, Layer: layer.LayerNorm{Size: c.Hidden}}
		if c.NormAfter {
			block = append(block, tape.Skip(p.body...), norm)
		} else {
			block = append(block, tape.Skip(append(tape.Sequential{norm}, p.body...)...))
		}
	}
	return decoderBlock{block}
}

func (c Transformer) seqAttention(cross bool) tape.Layer {
	return layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.ScoreDropout, Cross: cross,
		Joined: c.Family == Whisper, Scaled: c.Family == Whisper, NoKeyBias: c.Family == Whisper,
		Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
	}
}

// fixedPositions adds a table of positions that is not trained.
type fixedPositions struct {
	Num, Dim int
	upTo     bool // a text may have fewer
}

// Kind names the row.
func (fixedPositions) Kind() string { return "Embedding" }

func (l fixedPositions) Declare(d *tape.Declaration) {
	d.Modules[d.Current].Frozen = true
	layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d)
}

func (l fixedPositions) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	if n := x.Shape[1]; n > l.Num || n != l.Num && !l.upTo {
		return tape.Tensor{}, t.Errorf("input %v has another length than the model's %d positions", x.Shape, l.Num)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true})
}

// swapped is its input with the last two dimensions in each other's place, as a view.
type swapped struct{}

func (swapped) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, channels, length)"); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, x.Shape[2], x.Shape[1]), View: true})
}
