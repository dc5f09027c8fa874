package zoo

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// preActivation is batch norm, activation and convolution, of which DenseNet is made (arXiv:1608.06993).
func preActivation(i string, in, out, kernel int) []tape.Layer {
	return []tape.Layer{
		tape.As("norm"+i, layer.BatchNorm{Features: in}),
		tape.As("relu"+i, layer.ReLU{InPlace: true}),
		tape.As("conv"+i, layer.Conv2d{In: in, Out: out, Kernel: kernel, Padding: kernel / 2, NoBias: true}),
	}
}

// denseBlock gives each layer the outputs of all layers before it.
func denseBlock(in, layers, growth int) tape.Layer {
	var parts tape.Sequential
	for i := range layers {
		layer := tape.Sequential(append(preActivation("1", in+i*growth, 4*growth, 1), preActivation("2", 4*growth, growth, 3)...))
		parts = append(parts, tape.As(fmt.Sprint("denselayer", i+1), layer))
	}
	return tape.Module{Name: "DenseBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		features := []tape.Tensor{x}
		for i := range layers {
			features = append(features, f.Call(fmt.Sprint("denselayer", i+1), f.Cat(1, features...)))
		}
		return f.Cat(1, features...)
	}}
}

// densenet has so many layers in each of its blocks.
func densenet(blocks ...int) func() []tape.Layer {
	return func() []tape.Layer {
		in, growth := 64, 32
		features := tape.Sequential{
			tape.As("conv0", layer.Conv2d{In: 3, Out: in, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
			tape.As("norm0", layer.BatchNorm{Features: in}),
			tape.As("relu0", layer.ReLU{InPlace: true}),
			tape.As("pool0", layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}
		for i, layers := range blocks {
			if i > 0 {
				transition := tape.Sequential(append(preActivation("", in, in/2, 1), tape.As("pool", layer.AvgPool{Kernel: 2})))
				features, in = append(features, tape.As(fmt.Sprint("transition", i), transition)), in/2
			}
			features, in = append(features, tape.As(fmt.Sprint("denseblock", i+1), denseBlock(in, layers, growth))), in+layers*growth
		}
		features = append(features, tape.As("norm5", layer.BatchNorm{Features: in}))
		return []tape.Layer{
			tape.As("features", features), layer.ReLU{InPlace: true}, layer.AdaptiveAvgPool{Out: 1}, layer.Flatten{},
			tape.As("classifier", layer.Linear{In: in, Out: 1000}),
		}
	}
}
