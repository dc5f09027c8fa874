package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

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
