package zoo

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// preActivation is batch norm, activation and convolution, of which DenseNet is made (arXiv:1608.06993).
func preActivation(i string, in, out, kernel int) []estimate.Layer {
	return []estimate.Layer{
		estimate.As("norm"+i, estimate.BatchNorm{Features: in}),
		estimate.As("relu"+i, estimate.ReLU{InPlace: true}),
		estimate.As("conv"+i, estimate.Conv2d{In: in, Out: out, Kernel: kernel, Padding: kernel / 2, NoBias: true}),
	}
}

// denseBlock gives each layer the outputs of all layers before it.
func denseBlock(in, layers, growth int) estimate.Layer {
	var parts estimate.Sequential
	for i := range layers {
		layer := estimate.Sequential(append(preActivation("1", in+i*growth, 4*growth, 1), preActivation("2", 4*growth, growth, 3)...))
		parts = append(parts, estimate.As(fmt.Sprint("denselayer", i+1), layer))
	}
	return estimate.Module{Name: "DenseBlock", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		features := []estimate.Tensor{x}
		for i := range layers {
			features = append(features, f.Call(fmt.Sprint("denselayer", i+1), f.Cat(1, features...)))
		}
		return f.Cat(1, features...)
	}}
}

// densenet has so many layers in each of its blocks.
func densenet(blocks ...int) func() []estimate.Layer {
	return func() []estimate.Layer {
		in, growth := 64, 32
		features := estimate.Sequential{
			estimate.As("conv0", estimate.Conv2d{In: 3, Out: in, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
			estimate.As("norm0", estimate.BatchNorm{Features: in}),
			estimate.As("relu0", estimate.ReLU{InPlace: true}),
			estimate.As("pool0", estimate.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}
		for i, layers := range blocks {
			if i > 0 {
				transition := estimate.Sequential(append(preActivation("", in, in/2, 1), estimate.As("pool", estimate.AvgPool{Kernel: 2})))
				features, in = append(features, estimate.As(fmt.Sprint("transition", i), transition)), in/2
			}
			features, in = append(features, estimate.As(fmt.Sprint("denseblock", i+1), denseBlock(in, layers, growth))), in+layers*growth
		}
		features = append(features, estimate.As("norm5", estimate.BatchNorm{Features: in}))
		return []estimate.Layer{
			estimate.As("features", features), estimate.ReLU{InPlace: true}, estimate.AdaptiveAvgPool{Out: 1}, estimate.Flatten{},
			estimate.As("classifier", estimate.Linear{In: in, Out: 1000}),
		}
	}
}
