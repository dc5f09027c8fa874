package estimate_test

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// flatPool is the pooling of frames one by one, kernel (1, 3, 3) and stride (1, 2, 2).
type flatPool struct{}

func (flatPool) Declare(*estimate.Declaration) {}

func (flatPool) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	shape := x.Shape.Clone()
	for i := len(shape) - 2; i < len(shape); i++ {
		shape[i] = (shape[i] + 1) / 2
	}
	return t.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: shape, Keep: []estimate.Tensor{x}, KeepOwn: []estimate.Own{{Shape: shape, DType: alloc.Int64}}})
}

// shift moves channels between neighbouring frames, which copies all of them (arXiv:1811.08383).
type shift struct{}

func (shift) Declare(*estimate.Declaration) {}

func (shift) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	return t.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: x.Shape})
}

// videoResNet is a ResNet-50 whose convolutions are made by conv of their sizes: the kernel, the
// stride, and whether they look at neighbouring frames.
func videoResNet(conv func(in, out, kernel, stride int, frames bool) estimate.Layer, pool estimate.Layer, dims int, before ...estimate.Layer) []estimate.Layer {
	norm := func(n int) estimate.Layer { return estimate.BatchNorm{Features: n} }
	relu := estimate.ReLU{InPlace: true}
	layers := []estimate.Layer{conv(3, 64, 7, 2, false), norm(64), relu, pool}
	in := 64
	for stage, blocks := range []int{3, 4, 6, 3} {
		for b := range blocks {
			width, stride := 64<<stage, 1
			if stage > 0 && b == 0 {
				stride = 2
			}
			body := append(estimate.Sequential{}, before...)
			body = append(body, conv(in, width, 1, 1, stage >= 2), norm(width), relu, conv(width, width, 3, stride, false), norm(width), relu,
				conv(width, 4*width, 1, 1, false), norm(4*width))
			r := estimate.Residual{Body: body, After: relu}
			if in != 4*width {
				r.Shortcut = estimate.Sequential{conv(in, 4*width, 1, stride, false), norm(4 * width)}
			}
			layers, in = append(layers, r), 4*width
		}
	}
	return append(layers, estimate.AdaptiveAvgPool{Dims: dims, Out: 1}, estimate.Flatten{}, estimate.Dropout{}, estimate.Linear{In: in, Out: 400}, estimate.CrossEntropy{})
}

// slowOnly is mmaction2's ResNet3dSlowOnly, which looks at neighbouring frames in its last two stages.
func slowOnly() []estimate.Layer {
	return videoResNet(func(in, out, kernel, stride int, frames bool) estimate.Layer {
		c := estimate.Conv3d{In: in, Out: out, NoBias: true, KernelDHW: [3]int{1, kernel, kernel}, StrideDHW: [3]int{1, stride, stride}, PaddingDHW: [3]int{0, kernel / 2, kernel / 2}}
		if frames {
			c.KernelDHW[0], c.PaddingDHW[0] = 3, 1
		}
		return c
	}, flatPool{}, 3)
}

// tsm is a ResNet-50 of frames that shifts the input of each block.
func tsm() []estimate.Layer {
	return videoResNet(func(in, out, kernel, stride int, _ bool) estimate.Layer {
		return estimate.Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: kernel / 2, NoBias: true}
	}, estimate.MaxPool{Kernel: 3, Stride: 2, Padding: 1}, 2, shift{})
}

// videoRows are mmaction2's, each on one of 8 replicas.
func videoRows() []published {
	const repository = "open-mmlab/mmaction2, configs/recognition/"
	row := func(model, setting, where string, mib float64, layers []estimate.Layer, dims ...int) published {
		return published{
			kind: "convolutional", model: model, setting: setting + ", SGD with momentum, one of 8 replicas", grade: "B", mib: mib, what: "allocated", source: repository + where + " at 699e31a0",
			layers: layers, opts: opts(estimate.InputShape(dims...), estimate.Train(estimate.Momentum), estimate.Shard(estimate.Sharding{Data: 8})),
		}
	}
	return []published{
		row("ResNet-50 SlowOnly", "8 videos of 4 frames", "slowonly", 3168, slowOnly(), 8, 3, 4, 224, 224),
		row("TSM ResNet-50", "8 videos of 8 frames", "tsm", 7079, tsm(), 64, 3, 224, 224),
	}
}
