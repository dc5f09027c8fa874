package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

var others = []entry{
	image("densenet121", "DenseNet-121", 7978856, densenet121),
	image("mobilenet_v2", "MobileNetV2", 3504872, mobilenetV2),
	image("efficientnet_b0", "EfficientNet-B0", 5288548, efficientnetB0),
}

// convNorm is a convolution without bias, batch norm and activation.
func convNorm(in, out, kernel, stride, groups int, act estimate.Layer) estimate.Sequential {
	s := estimate.Sequential{
		estimate.Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: (kernel - 1) / 2, Groups: groups, NoBias: true},
		estimate.BatchNorm{Features: out},
	}
	if act != nil {
		s = append(s, act)
	}
	return s
}

// stretch is a row of the tables that describe the two models.
type stretch struct{ expand, kernel, stride, in, out, blocks int }

// mobilenetV2 follows arXiv:1801.04381, table 2.
func mobilenetV2() []estimate.Layer {
	act := estimate.ReLU6{InPlace: true}
	features := estimate.Sequential{convNorm(3, 32, 3, 2, 1, act)}
	for _, s := range []stretch{
		{1, 3, 1, 32, 16, 1}, {6, 3, 2, 16, 24, 2}, {6, 3, 2, 24, 32, 3}, {6, 3, 2, 32, 64, 4},
		{6, 3, 1, 64, 96, 3}, {6, 3, 2, 96, 160, 3}, {6, 3, 1, 160, 320, 1},
	} {
		in, stride := s.in, s.stride
		for range s.blocks {
			var conv estimate.Sequential
			if s.expand != 1 {
				conv = append(conv, convNorm(in, in*s.expand, 1, 1, 1, act))
			}
			conv = append(conv, convNorm(in*s.expand, in*s.expand, 3, stride, in*s.expand, act),
				estimate.Conv2d{In: in * s.expand, Out: s.out, Kernel: 1, NoBias: true}, estimate.BatchNorm{Features: s.out})
			features = append(features, inverted("conv", conv, stride == 1 && in == s.out, false))
			in, stride = s.out, 1
		}
	}
	features = append(features, convNorm(320, 1280, 1, 1, 1, act))
	return []estimate.Layer{
		named("features", features), estimate.AdaptiveAvgPool{Out: 1}, estimate.Flatten{},
		named("classifier", estimate.Sequential{estimate.Dropout{P: 0.2}, estimate.Linear{In: 1280, Out: 1000}}),
	}
}

// inverted is the inverted residual block, with or without its shortcut.
func inverted(name string, conv estimate.Sequential, shortcut, drop bool) estimate.Layer {
	body := estimate.Sequential{named(name, conv)}
	if !shortcut {
		return body
	}
	if drop {
		body = append(body, named("stochastic_depth", estimate.StochasticDepth{}))
	}
	return estimate.Residual{Body: body}
}

// efficientnetB0 follows arXiv:1905.11946, table 1.
func efficientnetB0() []estimate.Layer {
	act := estimate.SiLU{InPlace: true}
	features := estimate.Sequential{convNorm(3, 32, 3, 2, 1, act)}
	blocks := 0
	for _, s := range []stretch{
		{1, 3, 1, 32, 16, 1}, {6, 3, 2, 16, 24, 2}, {6, 5, 2, 24, 40, 2}, {6, 3, 2, 40, 80, 3},
		{6, 5, 1, 80, 112, 3}, {6, 5, 2, 112, 192, 4}, {6, 3, 1, 192, 320, 1},
	} {
		var stage estimate.Sequential
		in, stride := s.in, s.stride
		for range s.blocks {
			var b estimate.Sequential
			wide := in * s.expand
			if s.expand != 1 {
				b = append(b, convNorm(in, wide, 1, 1, 1, act))
			}
			b = append(b, convNorm(wide, wide, s.kernel, stride, wide, act), squeeze{wide, in / 4}, convNorm(wide, s.out, 1, 1, 1, nil))
			stage = append(stage, inverted("block", b, stride == 1 && in == s.out, blocks > 0))
			in, stride = s.out, 1
			blocks++
		}
		features = append(features, stage)
	}
	features = append(features, convNorm(320, 1280, 1, 1, 1, act))
	return []estimate.Layer{
		named("features", features), named("avgpool", estimate.AdaptiveAvgPool{Out: 1}), estimate.Flatten{},
		named("classifier", estimate.Sequential{estimate.Dropout{P: 0.2, InPlace: true}, estimate.Linear{In: 1280, Out: 1000}}),
	}
}

// squeeze is squeeze-and-excitation: each channel times a number made of all
// channels' means (arXiv:1709.01507).
type squeeze struct{ channels, middle int }

func (s squeeze) parts() estimate.Sequential {
	return estimate.Sequential{
		named("avgpool", estimate.AdaptiveAvgPool{Out: 1}),
		named("fc1", estimate.Conv2d{In: s.channels, Out: s.middle, Kernel: 1}),
		named("activation", estimate.SiLU{InPlace: true}),
		named("fc2", estimate.Conv2d{In: s.middle, Out: s.channels, Kernel: 1}),
		named("scale_activation", estimate.Sigmoid{}),
	}
}

// Declare implements estimate.Layer.
func (s squeeze) Declare(d *estimate.Declaration) { s.parts().Declare(d) }

// Forward implements estimate.Layer.
func (s squeeze) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	scale, err := s.parts().Forward(t, x)
	if err != nil {
		return estimate.Tensor{}, err
	}
	return t.Op(estimate.Op{In: []estimate.Tensor{x, scale}, Shape: x.Shape, Keep: []estimate.Tensor{x, scale}})
}
