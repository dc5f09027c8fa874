package layer

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SqueezeExcite is torchvision's SqueezeExcitation: each channel times a number made of all
// channels' means (arXiv:1709.01507).
type SqueezeExcite struct {
	Channels, Middle int
	Activation       tape.Layer // nil means ReLU
	Gate             tape.Layer // nil means Sigmoid
}

func (l SqueezeExcite) parts() tape.Sequential {
	if l.Activation == nil {
		l.Activation = ReLU{}
	}
	if l.Gate == nil {
		l.Gate = Sigmoid{}
	}
	return tape.Sequential{
		tape.As("avgpool", AdaptiveAvgPool{Out: 1}),
		tape.As("fc1", Conv2d{In: l.Channels, Out: l.Middle, Kernel: 1}),
		tape.As("activation", l.Activation),
		tape.As("fc2", Conv2d{In: l.Middle, Out: l.Channels, Kernel: 1}),
		tape.As("scale_activation", l.Gate),
	}
}

func (l SqueezeExcite) Declare(d *tape.Declaration) { l.parts().Declare(d) }

func (l SqueezeExcite) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	scale, err := l.parts().Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Mul(t, x, scale)
}
