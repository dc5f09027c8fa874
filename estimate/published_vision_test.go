package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// multihead is nn.MultiheadAttention of PyTorch 1.9 as mmcv calls it: with the length first, so that each of
// the projections copies its input.
func multihead(width, heads int) estimate.Module {
	var parts estimate.Sequential
	for _, name := range []string{"q", "k", "v", "out_proj"} {
		parts = append(parts, estimate.As(name, estimate.Linear{In: width, Out: width}))
	}
	return estimate.Module{Name: "MultiheadAttention", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		q, k, v := f.Scale(f.Call("q", f.Copy(x))), f.Call("k", f.Copy(x)), f.Call("v", f.Copy(x))
		batch, length := x.Dim(0), x.Dim(1)
		scores := f.Apply(estimate.Softmax{}, f.MatMul(q, k, width/heads, batch, heads, length, length))
		return f.Call("out_proj", f.Copy(f.MatMul(scores, v, length, batch, length, width)))
	}}
}

// dropPath is mmcv's, in two operations.
func dropPath(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
	return f.Apply(estimate.StochasticDepth{}, f.Scale(x))
}

// visionBlock is a block of mmcv's transformers, with norms before attention and the MLP.
func visionBlock(width int, attention estimate.Layer) estimate.Module {
	return estimate.Module{Name: "Block", Parts: estimate.Sequential{
		estimate.As("norm1", estimate.LayerNorm{Size: width}), estimate.As("attn", attention), estimate.As("norm2", estimate.LayerNorm{Size: width}),
		estimate.As("ffn", estimate.Sequential{estimate.Linear{In: width, Out: 4 * width}, estimate.GELU{}, estimate.Linear{In: 4 * width, Out: width}}),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		x = f.Add(x, dropPath(f, f.Call("attn", f.Call("norm1", x))))
		return f.Add(x, dropPath(f, f.Call("ffn", f.Call("norm2", x))))
	}}
}

// timeSformer is mmaction2's (arXiv:2102.05095), of ViT-B/16, whose attention sees the places of a frame, or all.
func timeSformer(frames int, joint bool) []estimate.Layer {
	const width, heads, places = 768, 12, 196
	block := visionBlock(width, multihead(width, heads))
	parts := estimate.Sequential{
		estimate.As("projection", estimate.Conv2d{In: 3, Out: width, Kernel: 16, Stride: 16}), estimate.As("pos_embed", estimate.Learned{Shape: []int{places + 1, width}}),
		estimate.As("layers", estimate.Repeat{N: 12, Layer: block}), estimate.As("norm", estimate.LayerNorm{Size: width}), estimate.As("fc_cls", estimate.Linear{In: width, Out: 400}),
	}
	return []estimate.Layer{estimate.Module{Name: "TimeSformer", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
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
		return f.Apply(estimate.CrossEntropy{}, f.Call("fc_cls", f.View(first, videos, width)))
	}}}
}

// timeSformerRows are mmaction2's, on V100s.
func timeSformerRows() []published {
	row := func(videos int, mib float64, joint bool) published {
		how := "space only"
		if joint {
			how = "space and time"
		}
		return published{
			kind: "transformer", model: "TimeSformer, " + how, setting: fmt.Sprintf("%d videos of 8 frames, SGD with momentum, one of 8 replicas", videos), grade: "B", mib: mib, what: "allocated",
			source: "open-mmlab/mmaction2, configs/recognition/timesformer at 699e31a0", layers: timeSformer(8, joint),
			opts: opts(estimate.InputShape(8*videos, 3, 224, 224), estimate.Train(estimate.Momentum), openMMLab, estimate.PyTorch(1, 9), estimate.Shard(estimate.Sharding{Data: 8})),
		}
	}
	return []published{row(8, 12750, false), row(6, 25658, true)}
}
