package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma4Vision is the image tower of Gemma 4: Gemma's blocks over patches, with learned positions
// by row and column.
var Gemma4Vision = &family.Family{
	Name:  "Gemma 4's tower",
	Tower: gemma4Vision,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "gemma4", Base: "Gemma4Model", Read: readGemma4Whole}},
}

// gemma4Sounds is the audio tower, a Conformer.
var gemma4Sounds = &family.Family{Name: "Gemma 4's tower of sounds", Role: family.Encoder, Tower: gemma4Audio}

func bare(in, out int) tape.Layer { return layer.Linear{In: in, Out: out, NoBias: true} }

func gemma4Vision(c family.Transformer, width int) []tape.Layer {
	norm, headNorm := layer.RMSNorm{Size: c.Hidden}, layer.RMSNorm{Size: c.HeadWidth()}
	wide := func(heads int) int { return setting.Product(heads, c.HeadWidth()) }
	block := tape.Sequential{
		bare(c.Hidden, wide(c.Heads)), bare(c.Hidden, wide(c.KVHeads)), bare(c.Hidden, wide(c.KVHeads)), bare(wide(c.Heads), c.Hidden), headNorm, headNorm,
		layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN}, norm, norm, norm, norm,
	}
	return []tape.Layer{
		tape.As("vision_tower", tape.Sequential{
			bare(setting.Product(3, c.Patch, c.Patch), c.Hidden),
			layer.Learned{Name: "position_embedding_table", Shape: alloc.Shape{2, c.Positions, c.Hidden}},
			tape.As("layers", tape.Repeat{N: c.Blocks, Layer: block}),
		}),
		tape.As("embed_vision", bare(c.Hidden, width)),
	}
}

// gemma4Convolutions are the channels of the convolutions that shorten a sound's spectrum.
var gemma4Convolutions = [2]int{128, 32}

func gemma4Audio(c family.Transformer, width int) []tape.Layer {
	hidden, norm := min(max(0, c.Hidden), setting.MaxField/4), layer.RMSNorm{Size: c.Hidden}
	first, second := gemma4Convolutions[0], gemma4Convolutions[1]
	feedForward := tape.Sequential{norm, bare(hidden, 4*hidden), bare(4*hidden, hidden), norm}
	attention := tape.Sequential{
		bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), // one of them for positions
		layer.Learned{Name: "per_dim_scale", Shape: alloc.Shape{hidden / max(1, c.Heads)}}, norm, norm,
	}
	convolution := tape.Sequential{norm, bare(hidden, 2*hidden), layer.Conv1d{In: hidden, Out: hidden, Kernel: c.Patch, Groups: hidden, NoBias: true}, norm, bare(hidden, hidden)}
	return []tape.Layer{
		tape.As("audio_tower", tape.Sequential{
			layer.Conv2d{In: 1, Out: first, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: first},
			layer.Conv2d{In: first, Out: second, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: second}, bare(first/4*second, hidden),
			tape.As("layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{feedForward, attention, convolution, feedForward, norm}}),
			layer.Linear{In: hidden, Out: c.EmbedDim},
		}),
		tape.As("embed_audio", bare(c.EmbedDim, width)),
	}
}

// readGemma4Whole reads Gemma 4 with the towers that it has, which are counted but do not run.
func readGemma4Whole(c *family.Config, a *family.Model) {
	class := c.Class("Gemma4ForConditionalGeneration")
	text := c.Component("text_config", "gemma4_text")
	text.Inherit("tie_word_embeddings", c) // the text's own flag does not count
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	if c.Has("vision_config") {
		v, tower := c.Component("vision_config", "gemma4_vision"), family.Transformer{Family: c.Family}
		v.Number(&tower.Hidden, "hidden_size", 768)
		v.Number(&tower.FFN, "intermediate_size", 3072)
		v.Number(&tower.Blocks, "num_hidden_layers", 16)
		v.Number(&tower.Heads, "num_attention_heads", 12)
		v.Number(&tower.KVHeads, "num_key_value_heads", 12)
		v.Number(&tower.HeadSize, "head_dim", 64)
		v.Number(&tower.Patch, "patch_size", 16)
		v.Number(&tower.Positions, "position_embedding_size", 10_240)
		a.Vision = &tower
	}
	if c.Has("audio_config") {
		v, tower := c.Component("audio_config", "gemma4_audio"), family.Transformer{Family: gemma4Sounds}
		v.Number(&tower.Hidden, "hidden_size", 1024)
		v.Number(&tower.Blocks, "num_hidden_layers", 12)
		v.Number(&tower.Heads, "num_attention_heads", 8)
		v.Number(&tower.Patch, "conv_kernel_size", 5)
		v.Number(&tower.EmbedDim, "output_proj_dims", 1536)
		if l := v.List("subsampling_conv_channels"); l != nil && (len(l) != 2 || [2]int(l) != gemma4Convolutions) {
			v.Unknown("subsampling_conv_channels", "channels other than 128 and 32")
		}
		a.Audio = &tower
	}
}
