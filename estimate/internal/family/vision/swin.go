package vision

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Swin has attention in windows of an image, in Stages (arXiv:2103.14030; transformers' modeling_swin.py).
var Swin = &family.Family{
	Name:   "Swin",
	Images: true,
	Layers: swin,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "swin", Base: "SwinModel", Read: readSwin}},
}

// Stages are the numbers of Swin's stages: the blocks and heads of each. FFN is the first stage's.
type Stages struct {
	Each     []Stage
	DropPath float64 // how often a block's attention is skipped
	stride   int     // of a head that predicts masked images: pixels of a side for each position; 0 means none
	Ratio    float64 // width of the MLP's middle to that of a block; 0 means that FFN doubles with the width
}

// maxStages bounds the stages, since each has twice the width.
const maxStages = 8

// swin builds Swin. Every other block shifts the windows.
func swin(c family.Transformer) []tape.Layer {
	own := *setting.Or(family.Own[Stages](c), &Stages{})
	if len(own.Each) > maxStages {
		return []tape.Layer{tape.Wrong("there are more than 8 Stages")}
	}
	stages, side, width := own.layers(c, func(in swinStage, b int, drops bool) tape.Layer {
		return swinBlock(c, in, b%2 == 1, drops)
	}, func(width int) tape.Layer { return layer.PatchMerging{Channels: width} })
	body := tape.Sequential{
		tape.As("embeddings", append(own.patches(c), tape.As("dropout", c.Drop()))),
		tape.As("encoder.layers", stages),
		tape.As("layernorm", layer.LayerNorm{Size: width}),
	}
	return own.heads(c, "swin", body, side, width)
}

// heads returns the model of this name with its head: of pixels, of classes, or none.
func (s Stages) heads(c family.Transformer, name string, body tape.Sequential, side, width int) []tape.Layer {
	if s.stride > 0 {
		return append([]tape.Layer{tape.As(name, body)}, pixelsOf(width, side, setting.Or(c.Channels, 3), s.stride)...)
	}
	body = append(body, tape.Inline(meanPlace{}))
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{tape.As(name, body)}
	}
	return []tape.Layer{tape.As(name, body), tape.As("classifier", layer.Linear{In: width, Out: c.Classes})}
}

// patches returns what embeds the patches, with a vector for masked ones if the head predicts them.
func (s Stages) patches(c family.Transformer) tape.Sequential {
	embed := swinPatches(c)
	if s.stride > 0 {
		embed = append(embed, unused("mask_token", 1, 1, c.Hidden))
	}
	return embed
}

// swinPatches returns the convolution that makes vectors of patches, and their norm.
func swinPatches(c family.Transformer) tape.Sequential {
	return tape.Sequential{
		tape.As("patch_embeddings.projection", layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch}),
		tape.Inline(family.FlatPatches{}),
		tape.As("norm", layer.LayerNorm{Size: c.Hidden}),
	}
}

// swinStage has the sizes of a stage.
type swinStage struct {
	side              int // vectors along a side of an image; after an odd side the next one is rounded up
	grid              int // the same, rounded down
	width, ffn, heads int
}

// layers returns the stages, the side of the last one's images and the width of its vectors. block returns block number
// b of a stage, and merge what halves the resolution after a stage of this width. The first block is never skipped.
func (s Stages) layers(c family.Transformer, block func(in swinStage, b int, drops bool) tape.Layer, merge func(width int) tape.Layer) (stages tape.Sequential, side, width int) {
	const most = setting.MaxField >> maxStages
	in, first := swinStage{side: c.Side(), grid: c.Side(), width: min(c.Hidden, most), ffn: min(c.FFN, most)}, true
	for i, each := range s.Each {
		in.heads = each.Heads
		var blocks tape.Sequential
		for b := range min(each.Blocks, tape.MaxLayers) {
			blocks = append(blocks, block(in, b, s.DropPath > 0 && !first))
			first = false
		}
		stage := tape.Sequential{tape.As("blocks", blocks)}
		if i+1 < len(s.Each) {
			stage = append(stage, imaged(in.side, 2*in.width, tape.As("downsample", merge(in.width))))
			in.side, in.grid, in.width = (in.side+1)/2, in.grid/2, 2*in.width
			in.ffn = s.middle(in.width, in.ffn)
		}
		stages = append(stages, stage)
	}
	return stages, in.side, in.width
}

func swinBlock(c family.Transformer, in swinStage, shifted, drops bool) tape.Layer {
	width := in.width
	w := layer.WindowAttention{Hidden: width, Heads: in.heads, Window: c.Window, Shifted: shifted}
	attention := tape.Sequential{tape.As("layernorm_before", layer.LayerNorm{Size: width}), imaged(in.side, width, tape.As("attention", w)), tape.Inline(c.Drop())}
	if drops {
		attention = append(attention, tape.As("drop_path", layer.StochasticDepth{}))
	}
	mlp := layer.MLP{Hidden: width, FFN: in.ffn, Activation: c.Activation}
	return tape.Sequential{
		tape.Skip(attention...),
		tape.Skip(tape.As("layernorm_after", layer.LayerNorm{Size: width}), tape.As("mlp", mlp), tape.Inline(c.Drop())),
	}
}

// middle returns the width of the MLP's middle in blocks of this width; before is that of the stage before.
func (s Stages) middle(width, before int) int {
	if s.Ratio > 0 {
		return int(min(s.Ratio*float64(width), setting.MaxField))
	}
	return 2 * before
}

// imaged runs a layer on (batch, positions, channels) seen as an image; out is the width of its
// output.
func imaged(side, out int, l tape.Layer) tape.Layer {
	return tape.Inline(tape.Sequential{tape.Inline(layer.Reshape{side, side, -1}), l, tape.Inline(layer.Reshape{-1, out})})
}

// meanPlace is the mean over the positions, or over all tokens but the first.
type meanPlace struct{}

func (meanPlace) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, positions, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}})
}

func readSwin(c *family.Config, a *family.Model) {
	const classifies, predicts = "SwinForImageClassification", "SwinForMaskedImageModeling"
	class := c.Class(classifies, predicts)
	if !c.Flag("qkv_bias", true) || c.Flag("use_absolute_embeddings", false) {
		c.Unknown("qkv_bias, use_absolute_embeddings", "another value than the usual")
	}
	own := &Stages{}
	readStages(c, a, own)
	a.Own = own
	if class == predicts {
		c.Number(&own.stride, "encoder_stride", 32)
	} else {
		a.Classes = c.ClassesOf(class)
	}
}

// readStages reads the stages and what else Swin and Swin V2 have in common.
func readStages(c *family.Config, a *family.Model, own *Stages) {
	c.Harmless("hidden_size", "num_layers") // both follow from embed_dim and depths
	depths := c.List("depths")
	var heads []int
	if len(depths) == 0 || json.Unmarshal(c.Value("num_heads"), &heads) != nil || len(heads) != len(depths) {
		c.Fail("depths, num_heads", "they are not lists of the same length")
		return
	}
	own.DropPath = c.Dropout("drop_path_rate")
	a.Dropout, a.Heads = c.Dropout("hidden_dropout_prob"), 1
	for i, depth := range depths {
		if depth < 1 || heads[i] < 1 || depth > family.MaxBlocks || heads[i] > family.LargestNumber || i >= family.MaxBlocks {
			c.Fail("depths, num_heads", "%d blocks of %d heads", depth, heads[i])
			return
		}
		own.Each = append(own.Each, Stage{Blocks: depth, Heads: heads[i]})
		a.Blocks += depth
	}
	c.Number(&a.Hidden, "embed_dim", 96)
	c.Pixels(&a.Transformer, 4)
	c.Number(&a.Window, "window_size", 7)
	own.Ratio = c.Ratio("mlp_ratio", 4)
	c.Times(&a.FFN, "mlp_ratio", a.Hidden, own.Ratio)
	c.Activation(a, c.Word("hidden_act"), "gelu")
}

// Stage is a stage of a Swin transformer. Its blocks have half the resolution and twice the width
// of the stage before.
type Stage struct{ Blocks, Heads int }
