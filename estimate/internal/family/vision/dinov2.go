package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// DINOv2 is ViT with layer scale, and in its later models with registers: learned tokens beside the class
// token, which have no positions (arXiv:2309.16588).
var DINOv2 = &family.Family{
	Name:   "DINOv2",
	Images: true,
	Layers: dino,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "dinov2", Base: "Dinov2Model", Read: readDINOv2},
		{Name: "dinov2_with_registers", Base: "Dinov2WithRegistersModel", Read: readDINOv2Registers},
	},
}

// dinoParts says what differs in a DINOv2.
type dinoParts struct {
	name      string // of the model within its classifier
	registers int
	unmasked  bool    // there is no vector for masked patches
	unbiased  bool    // queries, keys and values have no biases
	dropout   float64 // of the embeddings; that of the Transformer is of scores
}

// dino builds DINOv2: a ViT with learned factors on each part's output.
func dino(c family.Transformer) []tape.Layer {
	side := c.Side()
	own := *setting.Or(family.Own[dinoParts](c), &dinoParts{dropout: c.Dropout})
	body := tape.Sequential{
		tape.As("embeddings", patches{
			projection: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch},
			tokens:     min(setting.Product(side, side), setting.MaxField-1) + 1, hidden: c.Hidden, dropout: (family.Transformer{Dropout: own.dropout}).Drop(),
			masked: !own.unmasked, registers: own.registers,
		}),
		tape.As("encoder.layer", tape.Repeat{N: c.Blocks, Layer: dinoBlock(c, own.unbiased)}),
		tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}),
	}
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As(setting.Or(own.name, "dinov2"), body), classAndMean{}, tape.As("classifier", layer.Linear{In: 2 * min(c.Hidden, setting.MaxField/2), Out: c.Classes})}
}

func dinoBlock(c family.Transformer, unbiased bool) tape.Layer {
	var mlp tape.Layer = layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}
	if c.GatedFFN {
		mlp = layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}
	}
	attention := layer.Attention{Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.Dropout, NoBias: unbiased, OutBias: true}
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

// classAndMean joins the class token with the mean of the patches.
type classAndMean struct{}

func (classAndMean) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], 2 * x.Shape[2]}})
}

func readDINOv2(c *family.Config, a *family.Model) {
	dinoSettings(c, a, dinoParts{unmasked: !c.Flag("use_mask_token", true)})
}

func readDINOv2Registers(c *family.Config, a *family.Model) {
	own := dinoParts{name: "dinov2_with_registers"}
	if c.Whole("num_register_tokens", 4) != 0 {
		c.Number(&own.registers, "num_register_tokens", 4)
	}
	dinoSettings(c, a, own)
}

// dinoSettings reads what both have in common.
func dinoSettings(c *family.Config, a *family.Model, own dinoParts) {
	class := c.Class(c.Named("ForImageClassification"))
	own.unbiased = !c.Flag("qkv_bias", true)
	a.Own = &own
	ratio := c.Ratio("mlp_ratio", 4.0)
	c.Set("intermediate_size", 1) // computed below
	c.Encoder(a)
	own.dropout, a.Dropout = c.Dropout("hidden_dropout_prob"), c.Dropout("attention_probs_dropout_prob")
	a.GatedFFN = c.Flag("use_swiglu_ffn", false)
	c.Times(&a.FFN, "mlp_ratio", a.Hidden, ratio)
	if a.GatedFFN { // two thirds, rounded up to a multiple of 8
		a.FFN = (int(float64(a.FFN)*2/3) + 7) / 8 * 8
	}
	a.Classes = c.ClassesOf(class)
	c.Pixels(&a.Transformer, 14)
}
