package vision

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Swin has attention in windows of an image, in Stages.
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
	Ratio    float64 // width of the MLP's middle to that of a block; 0 means that FFN doubles with the width
}

// maxStages bounds the stages, since each has twice the width.
const maxStages = 8

// swin builds Swin: attention within windows of an image, shifted in every other block.
func swin(c family.Transformer) []tape.Layer {
	own := *setting.Or(family.Own[Stages](c), &Stages{})
	if len(own.Each) > maxStages {
		return []tape.Layer{tape.Wrong("there are more than 8 Stages")}
	}
	side := c.Side()
	embed := tape.Sequential{
		tape.As("patch_embeddings.projection", layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch}),
		tape.Inline(family.FlatPatches{}),
		tape.As("norm", layer.LayerNorm{Size: c.Hidden}),
		tape.As("dropout", c.Drop()),
	}
	var stages tape.Sequential
	width, ffn, first := min(c.Hidden, setting.MaxField>>maxStages), min(c.FFN, setting.MaxField>>maxStages), true
	for i, s := range own.Each {
		var blocks tape.Sequential
		for b := range min(s.Blocks, tape.MaxLayers) {
			blocks = append(blocks, swinBlock(c, side, width, ffn, s.Heads, b%2 == 1, own.DropPath > 0 && !first))
			first = false
		}
		stage := tape.Sequential{tape.As("blocks", blocks)}
		if i+1 < len(own.Each) {
			stage = append(stage, imaged(side, 2*width, tape.As("downsample", layer.PatchMerging{Channels: width})))
			side, width = (side+1)/2, 2*width
			ffn = own.middle(width, ffn)
		}
		stages = append(stages, stage)
	}
	body := tape.As("swin", tape.Sequential{
		tape.As("embeddings", embed),
		tape.As("encoder.layers", stages),
		tape.As("layernorm", layer.LayerNorm{Size: width}),
		tape.Inline(meanPlace{}),
	})
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{body}
	}
	return []tape.Layer{body, tape.As("classifier", layer.Linear{In: width, Out: c.Classes})}
}

func swinBlock(c family.Transformer, side, width, ffn, heads int, shifted, drops bool) tape.Layer {
	w := layer.WindowAttention{Hidden: width, Heads: heads, Window: c.Window, Shifted: shifted}
	attention := tape.Sequential{tape.As("layernorm_before", layer.LayerNorm{Size: width}), imaged(side, width, tape.As("attention", w)), tape.Inline(c.Drop())}
	if drops {
		attention = append(attention, tape.As("drop_path", layer.StochasticDepth{}))
	}
	mlp := layer.MLP{Hidden: width, FFN: ffn, Activation: c.Activation}
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
	class := c.Class("SwinForImageClassification")
	if !c.Flag("qkv_bias", true) || c.Flag("use_absolute_embeddings", false) {
		c.Unknown("qkv_bias, use_absolute_embeddings", "another value than the usual")
	}
	own := &Stages{}
	readStages(c, a, own)
	a.Own, a.Classes = own, c.ClassesOf(class)
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
