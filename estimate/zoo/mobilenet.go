package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

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
