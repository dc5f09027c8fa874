package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

var others = []entry{
	image("densenet121", "DenseNet-121", 7978856, densenet(6, 12, 24, 16)),
	image("densenet201", "DenseNet-201", 20013928, densenet(6, 12, 48, 32)),
	image("mobilenet_v2", "MobileNetV2", 3504872, mobilenetV2),
	image("mobilenet_v3_large", "MobileNetV3 Large", 5483032, mobilenetV3Large),
	image("efficientnet_b0", "EfficientNet-B0", 5288548, efficientnetB0),
	image("swin_t", "Swin Tiny", 28288354, swinTiny),
	image("convnext_tiny", "ConvNeXt Tiny", 28589128, convNeXtTiny),
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
			b = append(b, convNorm(wide, wide, s.kernel, stride, wide, act), estimate.SqueezeExcite{Channels: wide, Middle: in / 4, Activation: act}, convNorm(wide, s.out, 1, 1, 1, nil))
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

// mobilenetV3Large follows arXiv:1905.02244, table 1.
func mobilenetV3Large() []estimate.Layer {
	hard, relu := estimate.Hardswish{InPlace: true}, estimate.ReLU{InPlace: true}
	features := estimate.Sequential{convNorm(3, 16, 3, 2, 1, hard)}
	in := 16
	for _, s := range []struct {
		kernel, wide, out int
		squeeze           bool
		act               estimate.Layer
		stride            int
	}{
		{3, 16, 16, false, relu, 1}, {3, 64, 24, false, relu, 2}, {3, 72, 24, false, relu, 1},
		{5, 72, 40, true, relu, 2}, {5, 120, 40, true, relu, 1}, {5, 120, 40, true, relu, 1},
		{3, 240, 80, false, hard, 2}, {3, 200, 80, false, hard, 1}, {3, 184, 80, false, hard, 1}, {3, 184, 80, false, hard, 1},
		{3, 480, 112, true, hard, 1}, {3, 672, 112, true, hard, 1},
		{5, 672, 160, true, hard, 2}, {5, 960, 160, true, hard, 1}, {5, 960, 160, true, hard, 1},
	} {
		var b estimate.Sequential
		if s.wide != in {
			b = append(b, convNorm(in, s.wide, 1, 1, 1, s.act))
		}
		b = append(b, convNorm(s.wide, s.wide, s.kernel, s.stride, s.wide, s.act))
		if s.squeeze {
			b = append(b, estimate.SqueezeExcite{Channels: s.wide, Middle: divisible(s.wide/4, 8), Gate: estimate.Hardsigmoid{}})
		}
		b = append(b, convNorm(s.wide, s.out, 1, 1, 1, nil))
		features = append(features, inverted("block", b, s.stride == 1 && in == s.out, false))
		in = s.out
	}
	features = append(features, convNorm(in, 960, 1, 1, 1, hard))
	return []estimate.Layer{
		named("features", features), named("avgpool", estimate.AdaptiveAvgPool{Out: 1}), estimate.Flatten{},
		named("classifier", estimate.Sequential{estimate.Linear{In: 960, Out: 1280}, hard, estimate.Dropout{P: 0.2, InPlace: true}, estimate.Linear{In: 1280, Out: 1000}}),
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
