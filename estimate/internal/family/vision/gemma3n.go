package vision

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma3nVision is the tower of Gemma 3n.
var Gemma3nVision = &family.Family{
	Name:  "Gemma 3n's tower",
	Tower: gemma3nVision,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "gemma3n", Base: "Gemma3nModel", Read: readGemma3nWhole}},
}

// mobileNetV5 is the number of parameters of timm's mobilenetv5_300m_enc, the vision tower of Gemma 3n, as
// timm 1.0.31 makes it on PyTorch's meta device.
const mobileNetV5 = 294_126_912

// gemma3nVision returns the vision tower of Gemma 3n, with the projection to the text's width.
func gemma3nVision(c family.Transformer, width int) []tape.Layer {
	return []tape.Layer{
		tape.As("vision_tower", layer.Learned{Name: "weights", Shape: alloc.Shape{mobileNetV5}}),
		tape.As("embed_vision", gemma3nEmbedder(c, width)),
	}
}

// gemma3nAudio returns the audio tower, a Conformer that reads spectra.
func gemma3nAudio(c family.Transformer, width int) []tape.Layer {
	linear := func(in, out int) tape.Layer { return layer.Linear{In: in, Out: out, NoBias: true} }
	norm := layer.RMSNorm{Size: c.Hidden}
	hidden := min(max(0, c.Hidden), setting.MaxField/4)
	feedForward := tape.Sequential{norm, linear(hidden, 4*hidden), linear(4*hidden, hidden), norm}
	heads := hidden / max(1, c.Heads) * c.Heads // what does not divide is left out
	attention := tape.Sequential{
		norm, layer.Learned{Name: "per_dim_scale", Shape: alloc.Shape{hidden / max(1, c.Heads)}}, linear(hidden, heads), // of the positions
		linear(hidden, heads), linear(hidden, heads), linear(hidden, heads), linear(hidden, hidden), norm,
		family.Constants{{Name: "inv_timescales", Shape: alloc.Shape{1, 1, hidden / 2}, DType: alloc.Float32}},
	}
	convolution := tape.Sequential{norm, linear(hidden, 2*hidden), layer.Conv1d{In: hidden, Out: hidden, Kernel: c.Patch, Groups: hidden, NoBias: true}, norm, linear(hidden, hidden)}
	const first, second = 128, 32
	half := func(bands int) int { return (bands + 1) / 2 }
	return []tape.Layer{
		tape.As("audio_tower", tape.Sequential{
			layer.Conv2d{In: 1, Out: first, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: first},
			layer.Conv2d{In: first, Out: second, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: second},
			linear(second*half(half(min(c.Channels, setting.MaxField/second))), hidden),
			tape.As("conformer", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{feedForward, attention, convolution, feedForward, norm}}),
		}),
		tape.As("embed_audio", gemma3nEmbedder(c, width)),
	}
}

// gemma3nEmbedder projects a tower's output, and the tokens that stand for it, to the text's width.
func gemma3nEmbedder(c family.Transformer, width int) tape.Layer {
	return tape.Sequential{
		tape.As("embedding", layer.Embedding{Num: c.Vocab, Dim: c.Hidden}),
		tape.As("hard_embedding_norm", layer.RMSNorm{Size: c.Hidden}),
		tape.As("soft_embedding_norm", layer.RMSNorm{Size: c.Hidden}),
		tape.As("embedding_projection", layer.Linear{In: c.Hidden, Out: width, NoBias: true}),
	}
}

// readGemma3nWhole reads Gemma 3n with its image and audio towers, which are counted but do not
// run.
func readGemma3nWhole(c *family.Config, a *family.Model) {
	class := c.Class("Gemma3nForConditionalGeneration")
	text := c.Component("text_config", "gemma3n_text")
	text.Inherit("tie_word_embeddings", c) // the text's own flag does not count
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	a.Vision, a.Audio = gemma3nVisionSettings(c), gemma3nAudioSettings(c)
}

func gemma3nVisionSettings(c *family.Config) *family.Transformer {
	v := c.Component("vision_config", "gemma3n_vision")
	if name := v.Word("architecture"); name != "" && name != "mobilenetv5_300m_enc" { // timm's name
		v.Unknown("architecture", name)
	}
	tower := family.Transformer{Family: c.Family}
	v.Number(&tower.Hidden, "hidden_size", 2048)
	v.Number(&tower.Vocab, "vocab_size", 128)
	return &tower
}

func gemma3nAudioSettings(c *family.Config) *family.Transformer {
	audio := c.Component("audio_config", "gemma3n_audio")
	tower := family.Transformer{Family: gemma3nSounds}
	if sizes := audio.List("sscp_conv_channel_size"); sizes != nil && !slices.Equal(sizes, []int{128, 32}) {
		audio.Unknown("sscp_conv_channel_size", fmt.Sprint(sizes))
	}
	audio.Number(&tower.Hidden, "hidden_size", 1536)
	audio.Number(&tower.Vocab, "vocab_size", 128)
	audio.Number(&tower.Blocks, "conf_num_hidden_layers", 12)
	audio.Number(&tower.Heads, "conf_num_attention_heads", 8)
	audio.Number(&tower.Patch, "conf_conv_kernel_size", 5)
	audio.Number(&tower.Channels, "input_feat_size", 128)
	return &tower
}

// gemma3nSounds is the audio tower.
var gemma3nSounds = &family.Family{Name: "Gemma 3n's tower of sounds", Role: family.Encoder, Tower: gemma3nAudio}
