package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

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

// stretch is a row of the tables that describe MobileNetV2 and EfficientNet.
type stretch struct{ expand, kernel, stride, in, out, blocks int }

// inverted is the inverted residual block, with or without its shortcut.
func inverted(name string, conv estimate.Sequential, shortcut, drop bool) estimate.Layer {
	body := estimate.Sequential{estimate.As(name, conv)}
	if !shortcut {
		return body
	}
	if drop {
		body = append(body, estimate.As("stochastic_depth", estimate.StochasticDepth{}))
	}
	return estimate.Residual{Body: body}
}
