package zoo

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

func resnets() []entry {
	return []entry{
		image("resnet18", "ResNet-18", 11689512, resnet(plain, 2, 2, 2, 2)),
		image("resnet34", "ResNet-34", 21797672, resnet(plain, 3, 4, 6, 3)),
		image("resnet50", "ResNet-50", 25557032, resnet(bottleneck(64, 1), 3, 4, 6, 3)),
		image("resnet101", "ResNet-101", 44549160, resnet(bottleneck(64, 1), 3, 4, 23, 3)),
		image("resnet152", "ResNet-152", 60192808, resnet(bottleneck(64, 1), 3, 8, 36, 3)),
		image("resnext50_32x4d", "ResNeXt-50 32x4d", 25028904, resnet(bottleneck(4, 32), 3, 4, 6, 3)),
		image("wide_resnet50_2", "Wide ResNet-50-2", 68883240, resnet(bottleneck(128, 1), 3, 4, 6, 3)),
	}
}

// block makes the body of a block and says how many channels leave it.
type block func(in, width, stride int) (tape.Sequential, int)

// plain is the block of two convolutions (arXiv:1512.03385, figure 5).
func plain(in, width, stride int) (tape.Sequential, int) {
	return tape.Sequential{
		tape.As("conv1", layer.Conv2d{In: in, Out: width, Kernel: 3, Stride: stride, Padding: 1, NoBias: true}),
		tape.As("bn1", layer.BatchNorm{Features: width}),
		tape.As("relu", layer.ReLU{InPlace: true}),
		tape.As("conv2", layer.Conv2d{In: width, Out: width, Kernel: 3, Padding: 1, NoBias: true}),
		tape.As("bn2", layer.BatchNorm{Features: width}),
	}, width
}

// bottleneck is the block of three convolutions; base is the width of a group where
// the block has 64 channels (arXiv:1611.05431, arXiv:1605.07146). The stride is that of the
// middle one, as torchvision has it.
func bottleneck(base, groups int) block {
	return func(in, planes, stride int) (tape.Sequential, int) {
		width, out := planes*base/64*groups, 4*planes
		return tape.Sequential{
			tape.As("conv1", layer.Conv2d{In: in, Out: width, Kernel: 1, NoBias: true}),
			tape.As("bn1", layer.BatchNorm{Features: width}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("conv2", layer.Conv2d{In: width, Out: width, Kernel: 3, Stride: stride, Padding: 1, Groups: groups, NoBias: true}),
			tape.As("bn2", layer.BatchNorm{Features: width}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("conv3", layer.Conv2d{In: width, Out: out, Kernel: 1, NoBias: true}),
			tape.As("bn3", layer.BatchNorm{Features: out}),
		}, out
	}
}

func resnet(b block, depths ...int) func() []tape.Layer {
	return func() []tape.Layer {
		layers := []tape.Layer{
			tape.As("conv1", layer.Conv2d{In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
			tape.As("bn1", layer.BatchNorm{Features: 64}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("maxpool", layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}
		in := 64
		for i, depth := range depths {
			var stage tape.Sequential
			for j := range depth {
				stride := 1
				if i > 0 && j == 0 {
					stride = 2
				}
				var r tape.Residual
				r, in = residual(b, in, 64<<i, stride)
				stage = append(stage, r)
			}
			layers = append(layers, tape.As([]string{"layer1", "layer2", "layer3", "layer4"}[i], stage))
		}
		return append(layers,
			tape.As("avgpool", layer.AdaptiveAvgPool(1)), layer.Flatten{},
			tape.As("fc", layer.Linear{In: in, Out: 1000}))
	}
}

func residual(b block, in, width, stride int) (tape.Residual, int) {
	body, out := b(in, width, stride)
	r := tape.Residual{Body: body, After: tape.As("relu", layer.ReLU{InPlace: true})}
	if stride != 1 || in != out {
		r.Shortcut = tape.As("downsample", tape.Sequential{
			layer.Conv2d{In: in, Out: out, Kernel: 1, Stride: stride, NoBias: true},
			layer.BatchNorm{Features: out},
		})
	}
	return r, out
}

// preActivation returns a batch norm, an activation and a convolution, the parts of DenseNet
// (arXiv:1608.06993).
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

// densenet builds a DenseNet from the number of layers in each of its blocks.
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
			tape.As("features", features), layer.ReLU{InPlace: true}, layer.AdaptiveAvgPool(1), layer.Flatten{},
			tape.As("classifier", layer.Linear{In: in, Out: 1000}),
		}
	}
}

// The letters name the configurations in "Very Deep Convolutional Networks for Large-Scale Image
// Recognition" (arXiv:1409.1556, table 1). Numbers are channels, and 0 is a pooling.
var (
	vggA = []int{64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}
	vggB = []int{64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}
	vggD = []int{64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}
	vggE = []int{64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0}
)

func vggs() []entry {
	return []entry{
		image("vgg11", "VGG-11", 132863336, func() []tape.Layer { return vgg(vggA, false) }),
		image("vgg11_bn", "VGG-11 with batch norm", 132868840, func() []tape.Layer { return vgg(vggA, true) }),
		image("vgg13", "VGG-13", 133047848, func() []tape.Layer { return vgg(vggB, false) }),
		image("vgg13_bn", "VGG-13 with batch norm", 133053736, func() []tape.Layer { return vgg(vggB, true) }),
		image("vgg16", "VGG-16", 138357544, func() []tape.Layer { return vgg(vggD, false) }),
		image("vgg16_bn", "VGG-16 with batch norm", 138365992, func() []tape.Layer { return vgg(vggD, true) }),
		image("vgg19", "VGG-19", 143667240, func() []tape.Layer { return vgg(vggE, false) }),
		image("vgg19_bn", "VGG-19 with batch norm", 143678248, func() []tape.Layer { return vgg(vggE, true) }),
	}
}

func vgg(channels []int, norm bool) []tape.Layer {
	var features tape.Sequential
	in := 3
	for _, out := range channels {
		if out == 0 {
			features = append(features, layer.MaxPool{Kernel: 2})
			continue
		}
		features = append(features, layer.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1})
		if norm {
			features = append(features, layer.BatchNorm{Features: out})
		}
		features = append(features, layer.ReLU{InPlace: true})
		in = out
	}
	return []tape.Layer{
		tape.As("features", features),
		tape.As("avgpool", layer.AdaptiveAvgPool(7)),
		layer.Flatten{},
		tape.As("classifier", tape.Sequential{
			layer.Linear{In: 512 * 7 * 7, Out: 4096}, layer.ReLU{InPlace: true}, layer.Dropout{},
			layer.Linear{In: 4096, Out: 4096}, layer.ReLU{InPlace: true}, layer.Dropout{},
			layer.Linear{In: 4096, Out: 1000},
		}),
	}
}

// mobilenetV3Large follows arXiv:1905.02244, table 1.
func mobilenetV3Large() []tape.Layer {
	hard, relu := layer.Hardswish{InPlace: true}, layer.ReLU{InPlace: true}
	features := tape.Sequential{convNorm(3, 16, 3, 2, 1, hard)}
	in := 16
	for _, s := range []struct {
		kernel, wide, out int
		squeeze           bool
		act               tape.Layer
		stride            int
	}{
		{3, 16, 16, false, relu, 1}, {3, 64, 24, false, relu, 2}, {3, 72, 24, false, relu, 1},
		{5, 72, 40, true, relu, 2}, {5, 120, 40, true, relu, 1}, {5, 120, 40, true, relu, 1},
		{3, 240, 80, false, hard, 2}, {3, 200, 80, false, hard, 1}, {3, 184, 80, false, hard, 1}, {3, 184, 80, false, hard, 1},
		{3, 480, 112, true, hard, 1}, {3, 672, 112, true, hard, 1},
		{5, 672, 160, true, hard, 2}, {5, 960, 160, true, hard, 1}, {5, 960, 160, true, hard, 1},
	} {
		var b tape.Sequential
		if s.wide != in {
			b = append(b, convNorm(in, s.wide, 1, 1, 1, s.act))
		}
		b = append(b, convNorm(s.wide, s.wide, s.kernel, s.stride, s.wide, s.act))
		if s.squeeze {
			b = append(b, layer.SqueezeExcite{Channels: s.wide, Middle: divisible(s.wide/4, 8), Gate: layer.Hardsigmoid{}})
		}
		b = append(b, convNorm(s.wide, s.out, 1, 1, 1, nil))
		features = append(features, inverted("block", b, s.stride == 1 && in == s.out, false))
		in = s.out
	}
	features = append(features, convNorm(in, 960, 1, 1, 1, hard))
	return []tape.Layer{
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool(1)), layer.Flatten{},
		tape.As("classifier", tape.Sequential{
			layer.Linear{In: 960, Out: 1280}, hard, layer.Dropout{P: 0.2, InPlace: true}, layer.Linear{In: 1280, Out: 1000},
		}),
	}
}

// divisible is the multiple of d that is nearest to n, and not a tenth below it.
func divisible(n, d int) int {
	near := max(d, (n+d/2)/d*d)
	if 10*near < 9*n {
		near += d
	}
	return near
}

// mobilenetV2 follows arXiv:1801.04381, table 2.
func mobilenetV2() []tape.Layer {
	act := layer.ReLU6{InPlace: true}
	features := tape.Sequential{convNorm(3, 32, 3, 2, 1, act)}
	for _, s := range []stretch{
		{1, 3, 1, 32, 16, 1}, {6, 3, 2, 16, 24, 2}, {6, 3, 2, 24, 32, 3}, {6, 3, 2, 32, 64, 4},
		{6, 3, 1, 64, 96, 3}, {6, 3, 2, 96, 160, 3}, {6, 3, 1, 160, 320, 1},
	} {
		in, stride := s.in, s.stride
		for range s.blocks {
			var conv tape.Sequential
			if s.expand != 1 {
				conv = append(conv, convNorm(in, in*s.expand, 1, 1, 1, act))
			}
			conv = append(conv, convNorm(in*s.expand, in*s.expand, 3, stride, in*s.expand, act),
				layer.Conv2d{In: in * s.expand, Out: s.out, Kernel: 1, NoBias: true}, layer.BatchNorm{Features: s.out})
			features = append(features, inverted("conv", conv, stride == 1 && in == s.out, false))
			in, stride = s.out, 1
		}
	}
	features = append(features, convNorm(320, 1280, 1, 1, 1, act))
	return []tape.Layer{
		tape.As("features", features), layer.AdaptiveAvgPool(1), layer.Flatten{},
		tape.As("classifier", tape.Sequential{layer.Dropout{P: 0.2}, layer.Linear{In: 1280, Out: 1000}}),
	}
}

// convNorm is a convolution without bias, batch norm and activation.
func convNorm(in, out, kernel, stride, groups int, act tape.Layer) tape.Sequential {
	s := tape.Sequential{
		layer.Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: (kernel - 1) / 2, Groups: groups, NoBias: true},
		layer.BatchNorm{Features: out},
	}
	if act != nil {
		s = append(s, act)
	}
	return s
}

// stretch is a row of the tables that describe MobileNetV2 and EfficientNet.
type stretch struct{ expand, kernel, stride, in, out, blocks int }

// inverted is the inverted residual block, with or without its shortcut.
func inverted(name string, conv tape.Sequential, shortcut, drop bool) tape.Layer {
	body := tape.Sequential{tape.As(name, conv)}
	if !shortcut {
		return body
	}
	if drop {
		body = append(body, tape.As("stochastic_depth", layer.StochasticDepth{}))
	}
	return tape.Residual{Body: body}
}

// efficientnetB0 follows arXiv:1905.11946, table 1.
func efficientnetB0() []tape.Layer {
	act := layer.SiLU{InPlace: true}
	features := tape.Sequential{convNorm(3, 32, 3, 2, 1, act)}
	blocks := 0
	for _, s := range []stretch{
		{1, 3, 1, 32, 16, 1}, {6, 3, 2, 16, 24, 2}, {6, 5, 2, 24, 40, 2}, {6, 3, 2, 40, 80, 3},
		{6, 5, 1, 80, 112, 3}, {6, 5, 2, 112, 192, 4}, {6, 3, 1, 192, 320, 1},
	} {
		var stage tape.Sequential
		in, stride := s.in, s.stride
		for range s.blocks {
			var b tape.Sequential
			wide := in * s.expand
			if s.expand != 1 {
				b = append(b, convNorm(in, wide, 1, 1, 1, act))
			}
			b = append(b, convNorm(wide, wide, s.kernel, stride, wide, act),
				layer.SqueezeExcite{Channels: wide, Middle: in / 4, Activation: act}, convNorm(wide, s.out, 1, 1, 1, nil))
			stage = append(stage, inverted("block", b, stride == 1 && in == s.out, blocks > 0))
			in, stride = s.out, 1
			blocks++
		}
		features = append(features, stage)
	}
	features = append(features, convNorm(320, 1280, 1, 1, 1, act))
	return []tape.Layer{
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool(1)), layer.Flatten{},
		tape.As("classifier", tape.Sequential{layer.Dropout{P: 0.2, InPlace: true}, layer.Linear{In: 1280, Out: 1000}}),
	}
}

// convNeXtBlock returns a block for this number of channels (arXiv:2201.03545, figure 4), with its
// shortcut.
func convNeXtBlock(channels int, drop bool) tape.Layer {
	block := tape.Sequential{
		layer.Conv2d{In: channels, Out: channels, Kernel: 7, Padding: 3, Groups: channels},
		tape.Permute{0, 2, 3, 1},
		layer.LayerNorm{Size: channels},
		layer.Linear{In: channels, Out: 4 * channels}, layer.GELU{}, layer.Linear{In: 4 * channels, Out: channels},
		tape.Permute{0, 3, 1, 2},
	}
	scale := layer.Scaled{Shape: []int{channels, 1, 1}}
	return tape.Residual{Body: tape.Sequential{
		tape.As("block", block),
		tape.As("layer_scale", scale),
		tape.As("stochastic_depth", tape.If(drop, layer.StochasticDepth{})),
	}}
}

// convNeXtTiny follows arXiv:2201.03545, table 9.
func convNeXtTiny() []tape.Layer {
	features := tape.Sequential{tape.Sequential{layer.Conv2d{In: 3, Out: 96, Kernel: 4, Stride: 4}, layer.LayerNorm2d{Channels: 96}}}
	channels := 96
	for i, blocks := range []int{3, 3, 9, 3} {
		if i > 0 {
			features = append(features, tape.Sequential{
				layer.LayerNorm2d{Channels: channels}, layer.Conv2d{In: channels, Out: 2 * channels, Kernel: 2, Stride: 2},
			})
			channels *= 2
		}
		var stage tape.Sequential
		for b := range blocks {
			stage = append(stage, convNeXtBlock(channels, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []tape.Layer{
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool(1)),
		tape.As("classifier", tape.Sequential{
			layer.LayerNorm2d{Channels: channels}, layer.Flatten{}, layer.Linear{In: channels, Out: 1000},
		}),
	}
}
