package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Whisper: an encoder of spectra and a decoder, LayerNorm before each part.
var Whisper = register(&Family{
	Name: "Whisper",
	input: func(a *Model, batch, length int) []Input {
		return []Input{numbersOf(batch, a.Channels, 2*a.SourceLength), tokens(batch, length)}
	},
	layers: Transformer.whisper,
	role:   seq2Seq,
	Types: []Type{
		{Name: "whisper", Base: "WhisperModel", Keys: halvesKeys, Read: readWhisper},
	},
})

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
		tape.Named{Name: "layers", Layer: tape.Repeat{N: c.Blocks, Layer: c.seqBlock(false, true)}},
		tape.Named{Name: "layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
	decoder := tape.Sequential{
		tape.Named{Name: "embed_tokens", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		tape.Named{Name: "embed_positions", Layer: positions{Num: c.Positions, Dim: c.Hidden, each: true}},
		tape.Inlined{Layer: c.dropout()},
		tape.Named{Name: "layers", Layer: tape.Repeat{N: dec.Blocks, Layer: dec.seqBlock(true, true)}},
		tape.Named{Name: "layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
	layers := []tape.Layer{tape.Named{Name: "model", Layer: encoderDecoder{encoder, decoder}}}
	if c.NoHead {
		return layers
	}
	return append(layers, tape.Named{Name: "proj_out", Layer: layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns, Tied: "model.decoder.embed_tokens.weight"}})
}

// swapped is its input with the last two dimensions in each other's place, as a view.
type swapped struct{}

func (swapped) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, channels, length)"); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, x.Shape[2], x.Shape[1]), View: true})
}

func readWhisper(c *Config, a *Model) {
	class := c.class("WhisperForConditionalGeneration")
	a.NoHead = class == c.Base
	c.halves(a)
	c.number(&a.Channels, "num_mel_bins", 80)
	c.number(&a.SourceLength, "max_source_positions", 1500)
	c.number(&a.Positions, "max_target_positions", 448)
}
