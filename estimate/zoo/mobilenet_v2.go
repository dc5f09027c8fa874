package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

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
		tape.As("features", features), layer.AdaptiveAvgPool{Out: 1}, layer.Flatten{},
		tape.As("classifier", tape.Sequential{layer.Dropout{P: 0.2}, layer.Linear{In: 1280, Out: 1000}}),
	}
}
