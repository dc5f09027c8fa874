package seq2seq

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Whisper has an encoder of spectra and a decoder, LayerNorm before each part.
var Whisper = &family.Family{
	Name: "Whisper",
	Input: func(a *family.Model, batch, length int) []family.Input {
		return []family.Input{family.Reals(batch, a.Channels, 2*a.SourceLength), family.Tokens(batch, length)}
	},
	Layers: whisper,
	Role:   family.Seq2Seq,
	Types:  []family.Type{{Name: "whisper", Base: "WhisperModel", Keys: halvesKeys, Read: readWhisper}},
}

// whisper builds Whisper, which hears spectra and writes text.
func whisper(c family.Transformer) []tape.Layer {
	dec := c.Half()
	encoder := whisperEncoder(c)
	decoder := tape.Sequential{
		tape.As("embed_tokens", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
		tape.As("embed_positions", family.Positions{Num: c.Positions, Dim: c.Hidden, Each: true}),
		tape.Inline(c.Drop()),
		tape.As("layers", tape.Repeat{N: dec.Blocks, Layer: seqBlock(dec, true, true)}),
		tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}),
	}
	layers := []tape.Layer{tape.As("model", encoderDecoder{encoder: encoder, decoder: decoder})}
	if c.NoHead {
		return layers
	}
	return append(layers, tape.As("proj_out", layer.Output{Linear: layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns, Tied: "model.decoder.embed_tokens.weight"}}))
}

// whisperEncoder reads spectra.
func whisperEncoder(c family.Transformer) tape.Sequential {
	return tape.Sequential{
		tape.As("conv1", layer.Conv1d{In: c.Channels, Out: c.Hidden, Kernel: 3, Padding: 1}),
		tape.Inline(layer.GELU{}),
		tape.As("conv2", layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: 3, Stride: 2, Padding: 1}),
		tape.Inline(layer.GELU{}),
		tape.Inline(swapped{}),
		tape.As("embed_positions", fixedPositions{Num: c.SourceLength, Dim: c.Hidden}),
		tape.Inline(c.Drop()),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: seqBlock(c, false, true)}),
		tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}),
	}
}

// swapped returns its input with the last two dimensions swapped, as a view.
type swapped struct{}

func (swapped) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, channels, length)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, x.Shape[2], x.Shape[1]), View: true})
}

func readWhisper(c *family.Config, a *family.Model) {
	class := c.Class("WhisperForConditionalGeneration")
	a.NoHead = class == c.Base
	halvesSettings(c, a)
	if !a.Tied {
		c.Unknown("tie_word_embeddings", "false")
	}
	c.Number(&a.Channels, "num_mel_bins", 80)
	c.Number(&a.SourceLength, "max_source_positions", 1500)
	c.Number(&a.Positions, "max_target_positions", 448)
}
