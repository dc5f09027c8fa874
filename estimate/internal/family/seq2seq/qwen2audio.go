package seq2seq

import (
	"errors"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen2Audio reads sounds with Whisper's encoder, which joins pairs of its outputs, and writes text with
// Qwen2 (transformers' modeling_qwen2_audio.py). Its Types are the whole and the encoder alone.
var (
	Qwen2Audio = &family.Family{
		Name:  "Qwen2-Audio's tower",
		Tower: qwen2AudioTower,
		Look:  qwen2AudioLook,
		Role:  family.Encoder,
		Types: []family.Type{{Name: "qwen2_audio", Base: "Qwen2AudioModel", Read: readQwen2Audio}},
	}
	Qwen2AudioEncoder = &family.Family{
		Name: "Qwen2-Audio's encoder",
		Input: func(a *family.Model, batch, _ int) []family.Input {
			return []family.Input{family.Reals(batch, a.Channels, 2*a.SourceLength)}
		},
		Layers: func(c family.Transformer) []tape.Layer { return qwen2AudioEncoder(c) },
		Role:   family.Encoder,
		Types:  []family.Type{{Name: "qwen2_audio_encoder", Base: "Qwen2AudioEncoder", Keys: halvesKeys, Read: readQwen2AudioEncoder}},
	}
)

func qwen2AudioTower(c family.Transformer, width int) []tape.Layer {
	parts := qwen2AudioEncoder(c)
	return []tape.Layer{
		tape.As("audio_tower", tape.Module{Name: "AudioModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			if !silent(c) {
				return parts.Forward(f.Tape, x)
			}
			mask := f.Const(alloc.Bool, x.Dim(0), 1, c.SourceLength, c.SourceLength)
			x = parts.Forward(f.Tape, x)
			f.Hold(mask)
			return x
		}}),
		tape.As("multi_modal_projector.linear", layer.Linear{In: c.Hidden, Out: width}),
		tape.Inline(heard(c.Prompt.Each())),
	}
}

// frames returns the number of frames of the spectrum that a sound of the Prompt fills, of those that the encoder reads.
func frames(c family.Transformer) int {
	const rate, step = 16_000, 160 // samples in a second and in a frame
	return int(math.Min(math.Ceil(math.Floor(c.Prompt.Seconds*rate)/step), 2*float64(c.SourceLength)))
}

// silent reports whether the end of the spectrum has no sound, so that attention needs a mask.
func silent(c family.Transformer) bool {
	return c.Prompt != nil && frames(c) < setting.Product(2, c.SourceLength)
}

// qwen2AudioLook is that of a sound whose spectrum is padded to what the encoder reads, usually 30 seconds, or cut to it
// (processing_qwen2_audio.py).
func qwen2AudioLook(c family.Transformer) (family.Look, error) {
	tokens := ((frames(c)-1)/2+1-2)/2 + 1
	if frames(c) < 3 {
		return family.Look{}, errors.New("no token stands for so short a sound")
	}
	return family.Look{Tokens: tokens, Sized: true, Inputs: func(batch, _, count int) []family.Input {
		return []family.Input{
			family.Reals(batch, count, c.Channels, setting.Product(2, c.SourceLength)),
			{DType: alloc.Int32, Shape: []int{batch, count, setting.Product(2, c.SourceLength)}}, // which frames have sound
		}
	}}, nil
}

// heard leaves out the vectors of silence: this many of each sound remain.
type heard int

func (l heard) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(sounds, length, width)")
	mask := tape.Own{Shape: x.Shape[:2], DType: alloc.Bool}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{setting.Product(x.Dim(0), int(l)), x.Dim(2)}, KeepOwn: []tape.Own{mask}})
}

// qwen2AudioEncoder is Whisper's encoder with a pooling before its last norm.
func qwen2AudioEncoder(c family.Transformer) tape.Sequential {
	parts := whisperEncoder(c)
	last := len(parts) - 1
	return append(parts[:last:last], tape.Inline(pairMeans{}), tape.As("layer_norm", layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: c.Hidden}}))
}

// pairMeans is nn.AvgPool1d over pairs of neighbours, of (batch, length, width).
type pairMeans struct{}

func (pairMeans) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, width)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, x.Dim(1)/2, x.Dim(2)), Keep: []tape.Tensor{x}})
}

func readQwen2Audio(c *family.Config, a *family.Model) {
	class := c.Class("Qwen2AudioForConditionalGeneration")
	if !c.Given("text_config") || !c.Given("audio_config") {
		c.Fail("text_config, audio_config", "the key is missing")
	}
	text := c.Component("text_config", "")
	if text.Name == "" {
		text = c.Component("text_config", "qwen2")
	}
	if !text.Text {
		c.Unknown("text_config", "model_type "+text.Name)
		return
	}
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead, a.Tied = class == c.Base, false
	var tower family.Model
	tower.Family = c.Family
	readQwen2AudioEncoder(c.Component("audio_config", "qwen2_audio_encoder"), &tower)
	c.Check("audio_config", &tower)
	a.Audio = &tower.Transformer
}

func readQwen2AudioEncoder(c *family.Config, a *family.Model) {
	c.Class()
	c.Number(&a.Hidden, "d_model", 1280)
	c.Number(&a.Blocks, "encoder_layers", 32)
	c.Number(&a.Heads, "encoder_attention_heads", 20)
	c.Number(&a.FFN, "encoder_ffn_dim", 5120)
	c.Number(&a.Channels, "num_mel_bins", 128)
	c.Number(&a.SourceLength, "max_source_positions", 1500)
	a.Dropout, a.ScoreDropout = c.Dropout("dropout"), c.Dropout("attention_dropout")
	c.Activation(a, c.Word("activation_function"), "gelu")
}
