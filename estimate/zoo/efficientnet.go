package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

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
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool{Out: 1}), layer.Flatten{},
		tape.As("classifier", tape.Sequential{layer.Dropout{P: 0.2, InPlace: true}, layer.Linear{In: 1280, Out: 1000}}),
	}
}
