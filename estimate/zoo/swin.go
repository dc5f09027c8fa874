package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// windowAttention is attention within windows of 7 x 7, moved by half a window where shifted
// (arXiv:2103.14030, section 3.2), with torchvision's operations.
func windowAttention(channels, heads int, shifted bool) estimate.Module {
	const side, tokens = 7, 7 * 7
	return estimate.Module{
		Name: "ShiftedWindowAttention",
		Parts: estimate.Sequential{
			named("qkv", estimate.Linear{In: channels, Out: 3 * channels}), named("proj", estimate.Linear{In: channels, Out: channels}),
			named("bias", positionBias{heads, side}),
		},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			high, wide := x.Dim(1), x.Dim(2)
			moves := shifted && high > side
			move := func(x estimate.Tensor) estimate.Tensor {
				if moves {
					return f.Copy(x)
				}
				return x
			}
			windows := x.Dim(0) * (high / side) * (wide / side)
			in := f.View(f.Copy(move(f.Copy(x))), windows, tokens, channels) // padded, moved, cut
			all := f.Call("qkv", in)
			part := func() estimate.Tensor {
				return f.Copy(f.View(f.Part(all, 2, channels), windows, heads, tokens, channels/heads))
			}
			q, k, v := f.Scale(f.View(f.Part(all, 2, channels), windows, heads, tokens, channels/heads)), part(), part()
			scores := f.MatMul(f.Copy(q), k, channels/heads, windows, heads, tokens, tokens)
			scores = f.Add(scores, f.Call("bias", scores))
			if moves {
				scores = f.Scale(scores) // and the mask
			}
			scores = f.Apply(estimate.Softmax{}, scores)
			y := f.MatMul(scores, v, tokens, windows, heads, tokens, channels/heads)
			y = f.Call("proj", f.View(f.Copy(y), windows, tokens, channels))
			return f.View(move(f.Copy(y)), x.Shape...)
		},
	}
}

// positionBias is a learned number for each distance of two tokens of a window.
type positionBias struct{ heads, side int }

// Declare implements estimate.Layer.
func (b positionBias) Declare(d *estimate.Declaration) {
	d.Param("table", (2*b.side-1)*(2*b.side-1), b.heads)
	d.Add(estimate.Param{Name: "index", Shape: []int{b.side * b.side * b.side * b.side}, DType: alloc.Int64, Buffer: true})
}

// Forward implements estimate.Layer: what is added to scores, made of the table alone.
func (b positionBias) Forward(t *estimate.Tape, _ estimate.Tensor) (estimate.Tensor, error) {
	index, err := t.Const(alloc.Bool, 1) // stands for the buffer
	if err != nil {
		return estimate.Tensor{}, err
	}
	shape := []int{1, b.heads, b.side * b.side, b.side * b.side}
	y, err := t.Op(estimate.Op{In: []estimate.Tensor{index}, Shape: shape, DType: t.Activation(), Params: true})
	if err != nil {
		return estimate.Tensor{}, err
	}
	return t.Op(estimate.Op{In: []estimate.Tensor{y}, Shape: shape}) // heads first
}

// swinBlock is attention and an MLP, each added to what it reads.
func swinBlock(channels, heads int, shifted, drop bool) estimate.Module {
	norm := estimate.LayerNorm{Size: channels}
	return estimate.Module{
		Name: "SwinTransformerBlock",
		Parts: estimate.Sequential{
			named("norm1", norm), named("attn", windowAttention(channels, heads, shifted)), named("stochastic_depth", depth(drop)), named("norm2", norm),
			named("mlp", estimate.Sequential{
				estimate.Linear{In: channels, Out: 4 * channels}, estimate.GELU{}, estimate.Identity{}, estimate.Linear{In: 4 * channels, Out: channels}, estimate.Identity{},
			}),
		},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			x = f.Add(x, f.Call("stochastic_depth", f.Call("attn", f.Call("norm1", x))))
			return f.Add(x, f.Call("stochastic_depth", f.Call("mlp", f.Call("norm2", x))))
		},
	}
}

// patchMerging makes a pixel of four, with twice the channels.
func patchMerging(channels int) estimate.Layer {
	return estimate.Module{
		Name: "PatchMerging",
		Parts: estimate.Sequential{
			named("norm", estimate.LayerNorm{Size: 4 * channels}), named("reduction", estimate.Linear{In: 4 * channels, Out: 2 * channels, NoBias: true}),
		},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			x = f.Copy(x) // padded
			quarter := f.Part(f.Part(x, 1, x.Dim(1)/2), 2, x.Dim(2)/2)
			return f.Call("reduction", f.Call("norm", f.Cat(3, quarter, quarter, quarter, quarter)))
		},
	}
}

// swinTiny follows arXiv:2103.14030, table 7.
func swinTiny() []estimate.Layer {
	channels := 96
	features := estimate.Sequential{estimate.Sequential{
		estimate.Conv2d{In: 3, Out: channels, Kernel: 4, Stride: 4}, estimate.Permute{Dims: []int{0, 2, 3, 1}}, estimate.LayerNorm{Size: channels},
	}}
	for i, blocks := range []int{2, 2, 6, 2} {
		if i > 0 {
			features, channels = append(features, patchMerging(channels)), 2*channels
		}
		var stage estimate.Sequential
		for b := range blocks {
			stage = append(stage, swinBlock(channels, channels/32, b%2 == 1, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []estimate.Layer{
		named("features", features), named("norm", estimate.LayerNorm{Size: channels}), named("permute", estimate.Permute{Dims: []int{0, 3, 1, 2}}),
		named("avgpool", estimate.AdaptiveAvgPool{Out: 1}), named("flatten", estimate.Flatten{}), named("head", estimate.Linear{In: channels, Out: 1000}),
	}
}
