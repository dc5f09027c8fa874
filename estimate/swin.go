package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Stage is a part of a Swin transformer: blocks of the same resolution and width, which are half and
// twice those of the stage before.
type Stage struct{ Blocks, Heads int }

// maxStages bounds the stages, since each has twice the width.
const maxStages = 8

// swin builds Swin: attention within windows of an image, every other block's shifted.
func (c Transformer) swin() []Layer {
	if len(c.Stages) > maxStages {
		return []Layer{wrong("there are more than 8 Stages")}
	}
	side := c.side()
	embed := Sequential{
		Named{"patch_embeddings.projection", Conv2d{In: or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch}},
		inline{flatPatches{}},
		Named{"norm", LayerNorm{Size: c.Hidden}},
		Named{"dropout", c.dropout()},
	}
	var stages Sequential
	width, ffn, first := min(c.Hidden, maxField>>maxStages), min(c.FFN, maxField>>maxStages), true
	for i, s := range c.Stages {
		var blocks Sequential
		for b := range min(s.Blocks, maxLayers) {
			blocks = append(blocks, c.swinBlock(side, width, ffn, s.Heads, b%2 == 1, !first))
			first = false
		}
		stage := Sequential{Named{"blocks", blocks}}
		if i+1 < len(c.Stages) {
			stage = append(stage, imaged(side, 2*width, Named{"downsample", PatchMerging{Channels: width}}))
			side, width, ffn = (side+1)/2, 2*width, 2*ffn
		}
		stages = append(stages, stage)
	}
	body := Named{"swin", Sequential{
		Named{"embeddings", embed},
		Named{"encoder.layers", stages},
		Named{"layernorm", LayerNorm{Size: width}},
		inline{meanPlace{}},
	}}
	if c.Classes == 0 || c.NoHead {
		return []Layer{body}
	}
	return []Layer{body, Named{"classifier", Linear{In: width, Out: c.Classes}}}
}

func (c Transformer) swinBlock(side, width, ffn, heads int, shifted, drops bool) Layer {
	w := WindowAttention{Hidden: width, Heads: heads, Window: c.Window, Shifted: shifted}
	attention := Sequential{Named{"layernorm_before", LayerNorm{Size: width}}, imaged(side, width, Named{"attention", w}), inline{c.dropout()}}
	if drops && c.DropPath > 0 {
		attention = append(attention, Named{"drop_path", StochasticDepth{}})
	}
	mlp := MLP{Hidden: width, FFN: ffn, Activation: c.Activation}
	return Sequential{
		residual(attention...),
		residual(Named{"layernorm_after", LayerNorm{Size: width}}, Named{"mlp", mlp}, inline{c.dropout()}),
	}
}

// imaged runs a layer over the image that (batch, places, channels) stands for; out is the width of what it returns.
func imaged(side, out int, l Layer) Layer {
	return inline{Sequential{inline{Reshape{Dims: []int{side, side, -1}}}, l, inline{Reshape{Dims: []int{-1, out}}}}}
}

// meanPlace is the mean over the places.
type meanPlace struct{}

// Declare implements Layer.
func (meanPlace) Declare(*Declaration) {}

// Forward implements Layer.
func (meanPlace) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, places, hidden)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}})
}
