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
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool{Out: 1}), layer.Flatten{},
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
