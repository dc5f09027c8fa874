package estimate_test

import (
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// windowAttention is mmsegmentation's ShiftWindowMSA (arXiv:2103.14030) of an image that is padded to whole windows.
func windowAttention(side, window, width, heads int, shifted bool) estimate.Module {
	places := window * window
	across := (side + window - 1) / window
	padded := across * window
	return estimate.Module{Name: "ShiftWindowMSA", Parts: estimate.Sequential{
		estimate.As("qkv", estimate.Linear{In: width, Out: 3 * width}), estimate.As("bias", estimate.Learned{Shape: []int{heads, places, places}}),
		estimate.As("proj", estimate.Linear{In: width, Out: width}),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		batch, length, count := x.Dim(0), x.Dim(1), x.Dim(0)*across*across
		x = copied(f, x, batch, padded*padded, width)
		if shifted {
			x = f.Copy(x)
		}
		all := f.Call("qkv", copied(f, x, count, places, width))
		part := f.Part(all, 2, width)
		q, k, v := f.Scale(part), f.Copy(part), f.Copy(part)
		scores := f.Call("bias", f.MatMul(q, k, width/heads, count, heads, places, places))
		if shifted {
			scores = f.Scale(scores) // and masked
		}
		y := f.MatMul(f.Apply(estimate.Softmax{}, scores), v, places, count, places, width)
		y = copied(f, f.Call("proj", f.Copy(y)), batch, padded*padded, width)
		if shifted {
			y = f.Copy(y)
		}
		if padded != side {
			y = copied(f, y, batch, length, width)
		}
		return y
	}}
}

// copied is x in another shape, in new memory.
func copied(f *estimate.Flow, x estimate.Tensor, shape ...int) estimate.Tensor {
	return f.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: shape})
}

func swinBlock(side, window, width, heads int, shifted bool) estimate.Module {
	return estimate.Module{Name: "SwinBlock", Parts: estimate.Sequential{
		estimate.As("norm1", estimate.LayerNorm{Size: width}), estimate.As("attn", windowAttention(side, window, width, heads, shifted)),
		estimate.As("norm2", estimate.LayerNorm{Size: width}), estimate.As("ffn", estimate.Sequential{estimate.Linear{In: width, Out: 4 * width}, estimate.GELU{}, estimate.Linear{In: 4 * width, Out: width}}),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		x = f.Add(x, dropPath(f, f.Call("attn", f.Call("norm1", x))))
		return f.Add(x, dropPath(f, f.Call("ffn", f.Call("norm2", x))))
	}}
}

// swinSegmenter is a Swin of some width with the heads of an UPerNet.
func swinSegmenter(side, window, width int, blocks [4]int, classes int) []estimate.Layer {
	head := uperHead([4]int{width, 2 * width, 4 * width, 8 * width}, 512, classes)
	parts := estimate.Sequential{
		estimate.As("projection", estimate.Conv2d{In: 3, Out: width, Kernel: 4, Stride: 4}), estimate.As("norm", estimate.LayerNorm{Size: width}),
		estimate.As("decode_head", head), estimate.As("auxiliary_head", fcnHead(4*width, 256, 1, false, classes)),
	}
	for i := range 4 {
		var stage estimate.Sequential
		for b := range blocks[i] {
			stage = append(stage, swinBlock(side>>i, window, width<<i, width<<i/32, b%2 == 1))
		}
		at := strconv.Itoa(i)
		parts = append(parts, estimate.As("stage"+at, stage), estimate.As("norm"+at, estimate.LayerNorm{Size: width << i}))
		if i < 3 {
			parts = append(parts, estimate.As("downsample"+at, estimate.Sequential{estimate.LayerNorm{Size: 4 * width << i}, estimate.Linear{In: 4 * width << i, Out: 2 * width << i, NoBias: true}}))
		}
	}
	return []estimate.Layer{estimate.Module{Name: "EncoderDecoder", Parts: parts, Run: func(f *estimate.Flow, image estimate.Tensor) estimate.Tensor {
		batch := image.Dim(0)
		x := f.Call("norm", copied(f, f.Call("projection", image), batch, side*side, width))
		var stages [4]estimate.Tensor
		for i := range stages {
			at, side, width := strconv.Itoa(i), side>>i, width<<i
			x = f.Call("stage"+at, x)
			stages[i] = copied(f, f.Call("norm"+at, x), batch, width, side, side)
			if i < 3 {
				x = f.Call("downsample"+at, f.Copy(copied(f, x, batch, side*side/4, 4*width)))
			}
		}
		first := segmentationLoss(f, f.Call("decode_head", stages[3], stages[:3]...), image)
		return f.Add(first, segmentationLoss(f, f.Call("auxiliary_head", stages[2]), image))
	}}}
}

// swinRows are mmsegmentation's, of eight replicas, with PyTorch 1.7.
func swinRows() []published {
	row := func(name string, gib float64, window, width int, blocks [4]int) published {
		return published{
			kind: "convolutional", model: fmt.Sprintf("UPerNet %s, windows of %d, 150 classes", name, window), setting: "2 crops of 512 x 512, AdamW, one of 8 replicas", grade: "B", mib: gib * 1024, what: "allocated",
			source: "open-mmlab/mmsegmentation, configs/swin at 0e7cafef", layers: swinSegmenter(128, window, width, blocks, 150),
			opts: opts(estimate.InputShape(2, 3, 512, 512), estimate.Train(estimate.AdamW), openMMLab, estimate.PyTorch(1, 7), estimate.Shard(estimate.Sharding{Data: 8})),
		}
	}
	deep := [4]int{2, 2, 18, 2}
	return []published{
		row("Swin-T", 5.02, 7, 96, [4]int{2, 2, 6, 2}), row("Swin-S", 6.17, 7, 96, deep), row("Swin-B", 7.61, 7, 128, deep), row("Swin-B", 8.52, 12, 128, deep),
		row("Swin-L", 10.98, 7, 192, deep), row("Swin-L", 12.42, 12, 192, deep),
	}
}
