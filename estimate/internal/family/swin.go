package family

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Swin: windows of an image, in Stages.
var Swin = register(&Family{
	Name:   "Swin",
	images: true,
	layers: Transformer.swin,
	role:   encoder,
	Types: []Type{
		{Name: "swin", Base: "SwinModel", Read: readSwin},
	},
})

// Stage is a part of a Swin transformer: blocks of the same resolution and width, which are half and
// twice those of the stage before.
type Stage struct{ Blocks, Heads int }

// maxStages bounds the stages, since each has twice the width.
const maxStages = 8

// swin builds Swin: attention within windows of an image, every other block's shifted.
func (c Transformer) swin() []tape.Layer {
	if len(c.Stages) > maxStages {
		return []tape.Layer{tape.Wrong("there are more than 8 Stages")}
	}
	side := c.side()
	embed := tape.Sequential{
		tape.Named{Name: "patch_embeddings.projection", Layer: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch}},
		tape.Inlined{Layer: flatPatches{}},
		tape.Named{Name: "norm", Layer: layer.LayerNorm{Size: c.Hidden}},
		tape.Named{Name: "dropout", Layer: c.dropout()},
	}
	var stages tape.Sequential
	width, ffn, first := min(c.Hidden, setting.MaxField>>maxStages), min(c.FFN, setting.MaxField>>maxStages), true
	for i, s := range c.Stages {
		var blocks tape.Sequential
		for b := range min(s.Blocks, tape.MaxLayers) {
			blocks = append(blocks, c.swinBlock(side, width, ffn, s.Heads, b%2 == 1, !first))
			first = false
		}
		stage := tape.Sequential{tape.Named{Name: "blocks", Layer: blocks}}
		if i+1 < len(c.Stages) {
			stage = append(stage, imaged(side, 2*width, tape.Named{Name: "downsample", Layer: layer.PatchMerging{Channels: width}}))
			side, width, ffn = (side+1)/2, 2*width, 2*ffn
		}
		stages = append(stages, stage)
	}
	body := tape.Named{Name: "swin", Layer: tape.Sequential{
		tape.Named{Name: "embeddings", Layer: embed},
		tape.Named{Name: "encoder.layers", Layer: stages},
		tape.Named{Name: "layernorm", Layer: layer.LayerNorm{Size: width}},
		tape.Inlined{Layer: meanPlace{}},
	}}
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{body}
	}
	return []tape.Layer{body, tape.Named{Name: "classifier", Layer: layer.Linear{In: width, Out: c.Classes}}}
}

func (c Transformer) swinBlock(side, width, ffn, heads int, shifted, drops bool) tape.Layer {
	w := layer.WindowAttention{Hidden: width, Heads: heads, Window: c.Window, Shifted: shifted}
	attention := tape.Sequential{tape.Named{Name: "layernorm_before", Layer: layer.LayerNorm{Size: width}}, imaged(side, width, tape.Named{Name: "attention", Layer: w}), tape.Inlined{Layer: c.dropout()}}
	if drops && c.DropPath > 0 {
		attention = append(attention, tape.Named{Name: "drop_path", Layer: layer.StochasticDepth{}})
	}
	mlp := layer.MLP{Hidden: width, FFN: ffn, Activation: c.Activation}
	return tape.Sequential{
		tape.Skip(attention...),
		tape.Skip(tape.Named{Name: "layernorm_after", Layer: layer.LayerNorm{Size: width}}, tape.Named{Name: "mlp", Layer: mlp}, tape.Inlined{Layer: c.dropout()}),
	}
}

// imaged runs a layer over the image that (batch, places, channels) stands for; out is the width of what it returns.
func imaged(side, out int, l tape.Layer) tape.Layer {
	return tape.Inlined{Layer: tape.Sequential{tape.Inlined{Layer: layer.Reshape{Dims: []int{side, side, -1}}}, l, tape.Inlined{Layer: layer.Reshape{Dims: []int{-1, out}}}}}
}

// meanPlace is the mean over the places.
type meanPlace struct{}

func (meanPlace) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, places, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}})
}

func readSwin(c *Config, a *Model) {
	class := c.class("SwinForImageClassification")
	if !c.flag("qkv_bias", true) || c.flag("use_absolute_embeddings", false) {
		c.unknown("qkv_bias, use_absolute_embeddings", "another value than the usual")
	}
	depths := c.list("depths")
	var heads []int
	if len(depths) == 0 || json.Unmarshal(c.value("num_heads"), &heads) != nil || len(heads) != len(depths) {
		c.fail("depths, num_heads", "they are not lists of the same length")
		return
	}
	a.Dropout, a.DropPath, a.Heads = c.dropout("hidden_dropout_prob"), c.dropout("drop_path_rate"), 1
	for i, depth := range depths {
		if depth < 1 || heads[i] < 1 || depth > MaxBlocks || heads[i] > largestNumber || i >= MaxBlocks {
			c.fail("depths, num_heads", "%d blocks of %d heads", depth, heads[i])
			return
		}
		a.Stages = append(a.Stages, Stage{Blocks: depth, Heads: heads[i]})
		a.Blocks += depth
	}
	if class != c.Base {
		a.Classes = c.labels()
	}
	c.number(&a.Hidden, "embed_dim", 96)
	c.number(&a.Image, "image_size", 224)
	c.number(&a.Patch, "patch_size", 4)
	c.number(&a.Channels, "num_channels", 3)
	c.number(&a.Window, "window_size", 7)
	c.times(&a.FFN, "mlp_ratio", a.Hidden, c.ratio("mlp_ratio", 4))
	c.activation(a, c.text("hidden_act"), "gelu")
}
