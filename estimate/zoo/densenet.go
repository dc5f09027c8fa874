package zoo

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// denseLayer makes growth channels of all that came before it in its block
// (arXiv:1608.06993).
type denseLayer struct{ in, growth int }

func (l denseLayer) parts() estimate.Sequential {
	return estimate.Sequential{
		named("norm1", estimate.BatchNorm{Features: l.in}),
		named("relu1", estimate.ReLU{InPlace: true}),
		named("conv1", estimate.Conv2d{In: l.in, Out: 4 * l.growth, Kernel: 1, NoBias: true}),
		named("norm2", estimate.BatchNorm{Features: 4 * l.growth}),
		named("relu2", estimate.ReLU{InPlace: true}),
		named("conv2", estimate.Conv2d{In: 4 * l.growth, Out: l.growth, Kernel: 3, Padding: 1, NoBias: true}),
	}
}

// Declare implements estimate.Layer.
func (l denseLayer) Declare(d *estimate.Declaration) { l.parts().Declare(d) }

// Forward implements estimate.Layer.
func (l denseLayer) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	return l.parts().Forward(t, x)
}

// denseBlock gives each layer the outputs of all layers before it.
type denseBlock struct{ in, layers, growth int }

func (b denseBlock) layer(i int) (string, estimate.Layer) {
	return fmt.Sprintf("denselayer%d", i+1), denseLayer{b.in + i*b.growth, b.growth}
}

// Declare implements estimate.Layer.
func (b denseBlock) Declare(d *estimate.Declaration) {
	for i := range b.layers {
		if !d.Layer(b.layer(i)) {
			return
		}
	}
}

// Forward implements estimate.Layer.
func (b denseBlock) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	features := []estimate.Tensor{x}
	for i := range b.layers {
		all, err := estimate.Cat(t, 1, features...)
		if err != nil {
			return estimate.Tensor{}, err
		}
		name, layer := b.layer(i)
		made, err := t.Call(name, layer, all)
		if err != nil {
			return estimate.Tensor{}, err
		}
		features = append(features, made)
	}
	return estimate.Cat(t, 1, features...)
}

// densenet has so many layers in each of its blocks.
func densenet(depths ...int) func() []estimate.Layer {
	return func() []estimate.Layer { return denseNet(32, depths) }
}

func denseNet(growth int, depths []int) []estimate.Layer {
	features := estimate.Sequential{
		named("conv0", estimate.Conv2d{In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
		named("norm0", estimate.BatchNorm{Features: 64}),
		named("relu0", estimate.ReLU{InPlace: true}),
		named("pool0", estimate.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
	}
	in := 64
	for i, n := range depths {
		features = append(features, named(fmt.Sprintf("denseblock%d", i+1), denseBlock{in, n, growth}))
		in += n * growth
		if i < len(depths)-1 {
			features = append(features, named(fmt.Sprintf("transition%d", i+1), estimate.Sequential{
				named("norm", estimate.BatchNorm{Features: in}),
				named("relu", estimate.ReLU{InPlace: true}),
				named("conv", estimate.Conv2d{In: in, Out: in / 2, Kernel: 1, NoBias: true}),
				named("pool", estimate.AvgPool{Kernel: 2}),
			}))
			in /= 2
		}
	}
	features = append(features, named("norm5", estimate.BatchNorm{Features: in}))
	return []estimate.Layer{
		named("features", features), estimate.ReLU{InPlace: true},
		estimate.AdaptiveAvgPool{Out: 1}, estimate.Flatten{},
		named("classifier", estimate.Linear{In: in, Out: 1000}),
	}
}
