package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma3nVision: of Gemma 3n.
var Gemma3nVision = register(&Family{
	Name:  "Gemma 3n's tower",
	tower: Transformer.gemma3nVision,
	role:  encoder,
	Types: []Type{
		{Name: "gemma3n", Base: "Gemma3nModel", Read: readGemma3nWhole},
	},
})

// mobileNetV5 is the number of parameters of timm's mobilenetv5_300m_enc, the vision tower of Gemma 3n, as
// timm 1.0.31 makes it on PyTorch's meta device.
const mobileNetV5 = 294_126_912

// gemma3nVision is the vision tower of Gemma 3n, and what fits its output to the width of the text.
func (c Transformer) gemma3nVision(width int) []tape.Layer {
	return []tape.Layer{
		tape.Named{Name: "vision_tower", Layer: held{layer.Learned{Name: "weights", Shape: alloc.Shape{mobileNetV5}}}},
		tape.Named{Name: "embed_vision", Layer: held{c.gemma3nEmbedder(width)}},
	}
}

// gemma3nAudio is the tower of sounds, a Conformer whose input are spectra of so many Channels.
func (c Transformer) gemma3nAudio(width int) []tape.Layer {
	linear := func(in, out int) tape.Layer { return layer.Linear{In: in, Out: out, NoBias: true} }
	norm := layer.RMSNorm{Size: c.Hidden}
	hidden := min(max(0, c.Hidden), setting.MaxField/4)
	feedForward := tape.Sequential{norm, linear(hidden, 4*hidden), linear(4*hidden, hidden), norm}
	attention := tape.Sequential{
		norm, layer.Learned{Name: "per_dim_scale", Shape: alloc.Shape{hidden / max(1, c.Heads)}}, linear(hidden, hidden), // of the positions
		linear(hidden, hidden), linear(hidden, hidden), linear(hidden, hidden), linear(hidden, hidden), norm,
	}
	convolution := tape.Sequential{norm, linear(hidden, 2*hidden), layer.Conv1d{In: hidden, Out: hidden, Kernel: c.Patch, Groups: hidden, NoBias: true}, norm, linear(hidden, hidden)}
	const first, second = 128, 32
	return []tape.Layer{
		tape.Named{Name: "audio_tower", Layer: held{tape.Sequential{
			layer.Conv2d{In: 1, Out: first, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: first},
			layer.Conv2d{In: first, Out: second, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: second},
			linear(second*(min(c.Channels, setting.MaxField/second)/4), hidden),
			tape.Named{Name: "conformer", Layer: tape.Repeat{N: c.Blocks, Layer: tape.Sequential{feedForward, attention, convolution, feedForward, norm}}},
		}}},
		tape.Named{Name: "embed_audio", Layer: held{c.gemma3nEmbedder(width)}},
	}
}

// gemma3nEmbedder turns what a tower makes, and tokens that stand for it, to the width of the text.
func (c Transformer) gemma3nEmbedder(width int) tape.Layer {
	return tape.Sequential{
		tape.Named{Name: "embedding", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden}},
		tape.Named{Name: "hard_embedding_norm", Layer: layer.RMSNorm{Size: c.Hidden}},
		tape.Named{Name: "soft_embedding_norm", Layer: layer.RMSNorm{Size: c.Hidden}},
		tape.Named{Name: "embedding_projection", Layer: layer.Linear{In: c.Hidden, Out: width, NoBias: true}},
	}
}

// readGemma3nWhole reads Gemma 3n with its towers of images and sounds: they are counted, and not run.
func readGemma3nWhole(c *Config, a *Model) {
	class := c.class("Gemma3nForConditionalGeneration")
	text := c.component("text_config", "gemma3n_text")
	a.Family = text.family
	text.Read(text, a)
	a.NoHead = class == c.Base
	a.Vision, a.Audio = c.gemma3nVision(), c.gemma3nAudio()
}

func (c *Config) gemma3nVision() *Transformer {
	v := c.component("vision_config", "gemma3n_vision")
	if name := v.text("architecture"); name != "" && name != "mobilenetv5_300m_enc" { // timm's name
		v.unknown("architecture", name)
	}
	tower := Transformer{Family: c.family}
	v.number(&tower.Hidden, "hidden_size", 2048)
	v.number(&tower.Vocab, "vocab_size", 128)
	return &tower
}

func (c *Config) gemma3nAudio() *Transformer {
	audio := c.component("audio_config", "gemma3n_audio")
	var tower Transformer
	audio.number(&tower.Hidden, "hidden_size", 1536)
	audio.number(&tower.Vocab, "vocab_size", 128)
	audio.number(&tower.Blocks, "conf_num_hidden_layers", 12)
	audio.number(&tower.Heads, "conf_num_attention_heads", 8)
	audio.number(&tower.Patch, "conf_conv_kernel_size", 5)
	audio.number(&tower.Channels, "input_feat_size", 128)
	return &tower
}
