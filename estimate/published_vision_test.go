package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// multihead is nn.MultiheadAttention of PyTorch 1.9 as mmcv calls it: with the length first, so that each of
// the projections copies its input.
func multihead(width, heads int) tape.Module {
	var parts tape.Sequential
	for _, name := range []string{"q", "k", "v", "out_proj"} {
		parts = append(parts, tape.As(name, layer.Linear{In: width, Out: width}))
	}
	return tape.Module{Name: "MultiheadAttention", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		q, k, v := f.Scale(f.Call("q", f.Copy(x))), f.Call("k", f.Copy(x)), f.Call("v", f.Copy(x))
		batch, length := x.Dim(0), x.Dim(1)
		scores := f.Apply(layer.Softmax{}, f.MatMul(q, k, width/heads, batch, heads, length, length))
		return f.Call("out_proj", f.Copy(f.MatMul(scores, v, length, batch, length, width)))
	}}
}

// dropPath is mmcv's, in two operations.
func dropPath(f *tape.Flow, x tape.Tensor) tape.Tensor {
	return f.Apply(layer.StochasticDepth{}, f.Scale(x))
}

// visionBlock is a block of mmcv's transformers, with norms before attention and the MLP.
func visionBlock(width int, attention tape.Layer) tape.Module {
	return tape.Module{Name: "Block", Parts: tape.Sequential{
		tape.As("norm1", layer.LayerNorm{Size: width}), tape.As("attn", attention), tape.As("norm2", layer.LayerNorm{Size: width}),
		tape.As("ffn", tape.Sequential{layer.Linear{In: width, Out: 4 * width}, layer.GELU{}, layer.Linear{In: 4 * width, Out: width}}),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x = f.Add(x, dropPath(f, f.Call("attn", f.Call("norm1", x))))
		return f.Add(x, dropPath(f, f.Call("ffn", f.Call("norm2", x))))
	}}
}

// timeSformer is mmaction2's (arXiv:2102.05095), of ViT-B/16, whose attention sees the places of a frame, or all.
func timeSformer(frames int, joint bool) []tape.Layer {
	const width, heads, places = 768, 12, 196
	block := visionBlock(width, multihead(width, heads))
	parts := tape.Sequential{
		tape.As("projection", layer.Conv2d{In: 3, Out: width, Kernel: 16, Stride: 16}), tape.As("pos_embed", layer.Learned{Shape: []int{places + 1, width}}),
		tape.As("layers", tape.Repeat{N: 12, Layer: block}), tape.As("norm", layer.LayerNorm{Size: width}), tape.As("fc_cls", layer.Linear{In: width, Out: 400}),
	}
	return []tape.Layer{tape.Module{Name: "TimeSformer", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		patches := f.Call("projection", f.Copy(x))
		tokens := f.Call("pos_embed", copied(f, patches, x.Dim(0), places+1, width))
		videos := x.Dim(0) / frames
		if joint {
			tokens = f.Copy(f.Copy(copied(f, tokens, videos, frames*places+1, width)))
		}
		tokens = f.Call("layers", tokens)
		if !joint {
			tokens = copied(f, tokens, videos, places+1, width)
		}
		first := f.Part(f.Call("norm", tokens), 1, 1)
		return f.Apply(layer.CrossEntropy{}, f.Call("fc_cls", f.View(first, videos, width)))
	}}}
}

// timeSformerRows are mmaction2's, on V100s.
func timeSformerRows() []owned {
	row := func(videos int, joint bool) owned {
		how := "space only"
		if joint {
			how = "space and time"
		}
		return owned{
			model: "TimeSformer, " + how, setting: fmt.Sprintf("%d videos of 8 frames, SGD with momentum, one of 8 replicas", videos), layers: timeSformer(8, joint),
			opts: opts(estimate.InputShape(8*videos, 3, 224, 224), estimate.Train("momentum"), openMMLab, estimate.Installed("torch==1.9"), estimate.Sharding{Data: 8}),
		}
	}
	return []owned{row(8, false), row(6, true)}
}
