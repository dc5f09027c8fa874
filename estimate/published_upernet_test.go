package estimate_test

import (
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// windowAttention is that of a square image whose places are in a row.
func windowAttention(side, window, width, heads int, shifted bool) tape.Sequential {
	return tape.Sequential{
		layer.Reshape{side, side, width},
		layer.WindowAttention{Hidden: width, Heads: heads, Window: window, Shifted: shifted, Packed: true, Plain: true},
		layer.Reshape{side * side, width},
	}
}

// copied is x in another shape, in new memory.
func copied(f *tape.Flow, x tape.Tensor, shape ...int) tape.Tensor {
	return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
}

// swinSegmenter is a Swin of some width with the heads of an UPerNet.
func swinSegmenter(side, window, width int, blocks [4]int, classes int) []tape.Layer {
	head := uperHead([4]int{width, 2 * width, 4 * width, 8 * width}, 512, classes)
	parts := tape.Sequential{
		tape.As("projection", layer.Conv2d{In: 3, Out: width, Kernel: 4, Stride: 4}), tape.As("norm", layer.LayerNorm{Size: width}),
		tape.As("decode_head", head), tape.As("auxiliary_head", fcnHead(4*width, 256, 1, false, classes)),
	}
	for i := range 4 {
		var stage tape.Sequential
		for b := range blocks[i] {
			stage = append(stage, visionBlock(width<<i, windowAttention(side>>i, window, width<<i, width<<i/32, b%2 == 1)))
		}
		at := strconv.Itoa(i)
		parts = append(parts, tape.As("stage"+at, stage), tape.As("norm"+at, layer.LayerNorm{Size: width << i}))
		if i < 3 {
			parts = append(parts, tape.As("downsample"+at, tape.Sequential{layer.LayerNorm{Size: 4 * width << i}, layer.Linear{In: 4 * width << i, Out: 2 * width << i, NoBias: true}}))
		}
	}
	return []tape.Layer{tape.Module{Name: "EncoderDecoder", Parts: parts, Run: func(f *tape.Flow, image tape.Tensor) tape.Tensor {
		batch := image.Dim(0)
		x := f.Call("norm", copied(f, f.Call("projection", image), batch, side*side, width))
		var stages [4]tape.Tensor
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

// vitSegmenter is a ViT of images of 512 x 512 with the heads of an UPerNet, which read every third of its blocks.
func vitSegmenter(width, heads, classes int) []tape.Layer {
	const side = 32
	parts := tape.Sequential{
		tape.As("projection", layer.Conv2d{In: 3, Out: width, Kernel: 16, Stride: 16}), tape.As("pos_embed", layer.Learned{Shape: []int{side*side + 1, width}}),
		tape.As("decode_head", uperHead([4]int{width, width, width, width}, 512, classes)), tape.As("auxiliary_head", fcnHead(width, 256, 1, false, classes)),
	}
	for i := range 4 {
		parts = append(parts, tape.As("layers"+strconv.Itoa(i), tape.Repeat{N: 3, Layer: visionBlock(width, multihead(width, heads))}))
	}
	return []tape.Layer{tape.Module{Name: "EncoderDecoder", Parts: parts, Run: func(f *tape.Flow, image tape.Tensor) tape.Tensor {
		batch := image.Dim(0)
		x := f.Call("pos_embed", copied(f, f.Call("projection", image), batch, side*side+1, width))
		var stages [4]tape.Tensor
		for i := range stages {
			x = f.Call("layers"+strconv.Itoa(i), x)
			stages[i] = copied(f, x, batch, width, side, side)
		}
		first := segmentationLoss(f, f.Call("decode_head", stages[3], stages[:3]...), image)
		return f.Add(first, segmentationLoss(f, f.Call("auxiliary_head", stages[3]), image))
	}}}
}

// upernetRows are mmsegmentation's of 2021 and 2022, of eight replicas, with PyTorch before 1.11.
func upernetRows() []owned {
	row := func(name string, layers []tape.Layer) owned {
		return owned{
			model: "UPerNet " + name + ", 150 classes", setting: "2 crops of 512 x 512, AdamW, one of 8 replicas", layers: layers,
			opts: opts(estimate.InputShape(2, 3, 512, 512), estimate.Train("adamw"), openMMLab, estimate.Installed("torch==1.7"), estimate.Sharding{Data: 8}),
		}
	}
	rows := []owned{row("DeiT-S", vitSegmenter(384, 6, 150)), row("DeiT-B", vitSegmenter(768, 12, 150))}
	for _, s := range []struct {
		name          string
		window, width int
		third         int // blocks of the third stage
	}{{"T", 7, 96, 6}, {"S", 7, 96, 18}, {"B", 7, 128, 18}, {"B", 12, 128, 18}, {"L", 7, 192, 18}, {"L", 12, 192, 18}} {
		layers := swinSegmenter(128, s.window, s.width, [4]int{2, 2, s.third, 2}, 150)
		rows = append(rows, row(fmt.Sprintf("Swin-%s, windows of %d", s.name, s.window), layers))
	}
	return rows
}
