package estimate

// SqueezeExcite is torchvision's SqueezeExcitation: each channel times a number made of all
// channels' means (arXiv:1709.01507).
type SqueezeExcite struct {
	Channels, Middle int
	Activation       Layer // nil means ReLU
	Gate             Layer // nil means Sigmoid
}

func (l SqueezeExcite) parts() Sequential {
	if l.Activation == nil {
		l.Activation = ReLU{}
	}
	if l.Gate == nil {
		l.Gate = Sigmoid{}
	}
	return Sequential{
		As("avgpool", AdaptiveAvgPool{Out: 1}),
		As("fc1", Conv2d{In: l.Channels, Out: l.Middle, Kernel: 1}),
		As("activation", l.Activation),
		As("fc2", Conv2d{In: l.Middle, Out: l.Channels, Kernel: 1}),
		As("scale_activation", l.Gate),
	}
}

// Declare implements Layer.
func (l SqueezeExcite) Declare(d *Declaration) { l.parts().Declare(d) }

// Forward implements Layer.
func (l SqueezeExcite) Forward(t *Tape, x Tensor) (Tensor, error) {
	scale, err := l.parts().Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return mul(t, x, scale)
}
