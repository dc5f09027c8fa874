package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// DINOv2 is ViT with layer scale.
var DINOv2 = &family.Family{
	Name:   "DINOv2",
	Images: true,
	Layers: dino,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "dinov2", Base: "Dinov2Model", Read: readDINOv2}},
}

// dino builds DINOv2: a ViT with learned factors on each part's output.
func dino(c family.Transformer) []tape.Layer {
	side := c.Side()
	body := tape.Sequential{
		tape.As("embeddings", dinoPatches{patches{
			projection: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch},
			tokens:     int(min(setting.FLOPs(side, side), setting.MaxField-1)) + 1, hidden: c.Hidden, dropout: c.Drop(),
		}}),
		tape.As("encoder.layer", tape.Repeat{N: c.Blocks, Layer: dinoBlock(c)}),
		tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}),
	}
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As("dinov2", body), classAndMean{}, tape.As("classifier", layer.Linear{In: 2 * min(c.Hidden, setting.MaxField/2), Out: c.Classes})}
}

func dinoBlock(c family.Transformer) tape.Layer {
	var mlp tape.Layer = layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}
	if c.GatedFFN {
		mlp = layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}
	}
	attention := layer.Attention{Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.Dropout}
	return tape.Sequential{
		tape.Skip(tape.As("norm1", layer.LayerNorm{Size: c.Hidden}), tape.As("attention", attention), tape.As("layer_scale1", layerScale{c.Hidden})),
		tape.Skip(tape.As("norm2", layer.LayerNorm{Size: c.Hidden}), tape.As("mlp", mlp), tape.As("layer_scale2", layerScale{c.Hidden})),
	}
}

// layerScale multiplies each feature by a learned factor.
type layerScale struct{ n int }

func (l layerScale) Declare(d *tape.Declaration) { d.Param("lambda1", l.n) }

func (l layerScale) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	reads := []tape.Tensor{x}
	return t.Op(tape.Op{In: reads, Shape: x.Shape, Params: true, Keep: t.ForWeights(reads)})
}

// dinoPatches is patches with one more token, for masked patches.
type dinoPatches struct{ patches }

func (l dinoPatches) Declare(d *tape.Declaration) {
	l.patches.Declare(d)
	d.Param("mask_token", 1, l.hidden)
}

// classAndMean joins the class token with the mean of the patches.
type classAndMean struct{}

func (classAndMean) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], 2 * x.Shape[2]}})
}

func readDINOv2(c *family.Config, a *family.Model) {
	class := c.Class("Dinov2ForImageClassification")
	if !c.Flag("qkv_bias", true) || !c.Flag("use_mask_token", true) {
		c.Unknown("qkv_bias, use_mask_token", "false")
	}
	ratio := c.Ratio("mlp_ratio", 4.0)
	c.Set("intermediate_size", 1) // computed below
	c.Encoder(a)
	a.GatedFFN = c.Flag("use_swiglu_ffn", false)
	c.Times(&a.FFN, "mlp_ratio", a.Hidden, ratio)
	if a.GatedFFN { // two thirds, rounded up to a multiple of 8
		a.FFN = (int(float64(a.FFN)*2/3) + 7) / 8 * 8
	}
	a.Classes = c.ClassesOf(class)
	c.Pixels(&a.Transformer, 14)
}
