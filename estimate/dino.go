package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// dino builds DINOv2: a ViT whose parts are multiplied by learned factors.
func (c Transformer) dino() []Layer {
	side := c.side()
	body := Sequential{
		Named{"embeddings", dinoPatches{patches{
			projection: Conv2d{In: or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch},
			tokens:     int(min(FLOPs(side, side), maxField-1)) + 1, hidden: c.Hidden, dropout: c.dropout(),
		}}},
		Named{"encoder.layer", Repeat{N: c.Blocks, Layer: c.dinoBlock()}},
		Named{"layernorm", LayerNorm{Size: c.Hidden}},
	}
	if c.Classes == 0 || c.NoHead {
		return []Layer{inline{body}}
	}
	return []Layer{Named{"dinov2", body}, classAndMean{}, Named{"classifier", Linear{In: 2 * min(c.Hidden, maxField/2), Out: c.Classes}}}
}

func (c Transformer) dinoBlock() Layer {
	var mlp Layer = MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}
	if c.GatedFFN {
		mlp = GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}
	}
	attention := Attention{Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.Dropout}
	return Sequential{
		residual(Named{"norm1", LayerNorm{Size: c.Hidden}}, Named{"attention", attention}, Named{"layer_scale1", layerScale{c.Hidden}}),
		residual(Named{"norm2", LayerNorm{Size: c.Hidden}}, Named{"mlp", mlp}, Named{"layer_scale2", layerScale{c.Hidden}}),
	}
}

// layerScale multiplies each feature by a learned factor.
type layerScale struct{ n int }

// Declare implements Layer.
func (l layerScale) Declare(d *Declaration) { d.Param("lambda1", l.n) }

// Forward implements Layer.
func (l layerScale) Forward(t *Tape, x Tensor) (Tensor, error) {
	reads := []Tensor{x}
	return t.Op(Op{In: reads, Shape: x.Shape, Params: true, Keep: t.forWeights(reads)})
}

// dinoPatches are patches with a token that stands for masked ones besides.
type dinoPatches struct{ patches }

// Declare implements Layer.
func (l dinoPatches) Declare(d *Declaration) {
	l.patches.Declare(d)
	d.Param("mask_token", 1, l.hidden)
}

// classAndMean joins the class token with the mean of the patches.
type classAndMean struct{}

// Declare implements Layer.
func (classAndMean) Declare(*Declaration) {}

// Forward implements Layer.
func (classAndMean) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], 2 * x.Shape[2]}})
}
