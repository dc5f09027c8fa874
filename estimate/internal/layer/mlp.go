package layer

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MLP is two linear layers with an activation between them.
type MLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is GELU
	NoBias      bool

	Names *[3]string // of the first layer, the activation and the second layer
}

// GatedNames are the names of the projections. Both is the name of gate and up together, where they
// are Packed.
type GatedNames struct{ Gate, Up, Both, Down string }

var llamaMLP = &GatedNames{"gate_proj", "up_proj", "gate_up_proj", "down_proj"}

var MlpNames = &[3]string{"fc1", "activation_fn", "fc2"}

// GatedMLP is down(act(gate(x)) * up(x)), as in Llama.
type GatedMLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is SiLU
	Bias        bool
	Packed      bool // one projection for gate and up

	Thinned bool        // most elements of the gate are set to 0
	Names   *GatedNames // nil for Llama's
}

func (l MLP) parts() (up, act, down tape.Layer) {
	return Linear{In: l.Hidden, Out: l.FFN, NoBias: l.NoBias, Split: ByColumns},
		l.Activation.Layer(UseGELU),
		Linear{In: l.FFN, Out: l.Hidden, NoBias: l.NoBias, Split: ByRows}
}

func (l MLP) Declare(d *tape.Declaration) {
	up, act, down := l.parts()
	n := setting.Or(l.Names, MlpNames)
	d.Layer(n[0], up)
	d.Layer(n[1], act)
	d.Layer(n[2], down)
}

func (l MLP) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	up, act, down := l.parts()
	n := setting.Or(l.Names, MlpNames)
	x, err := t.Call(n[0], up, x)
	if err == nil {
		x, err = t.Call(n[1], act, x)
	}
	if err == nil {
		x, err = t.Call(n[2], down, x)
	}
	return x, err
}

func (l GatedMLP) parts() (up, packed Linear, act tape.Layer, down Linear) {
	in := Linear{In: l.Hidden, Out: l.FFN, NoBias: !l.Bias, Split: ByColumns}
	both := in
	both.Out *= 2
	return in, both, l.Activation.Layer(UseSiLU), Linear{In: l.FFN, Out: l.Hidden, NoBias: !l.Bias, Split: ByRows}
}

func (l GatedMLP) Declare(d *tape.Declaration) {
	if !d.Want("FFN", l.FFN, 1) {
		return
	}
	up, packed, act, down := l.parts()
	names := setting.Or(l.Names, llamaMLP)
	if l.Packed {
		d.Layer(names.Both, packed)
		d.Layer("activation_fn", act)
	} else {
		d.Layer(names.Gate, up)
		d.Layer("act_fn", act)
		d.Layer(names.Up, up)
	}
	d.Layer(names.Down, down)
}

func (l GatedMLP) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	in, packed, act, down := l.parts()
	names := setting.Or(l.Names, llamaMLP)
	var gate, up tape.Tensor
	var err error
	if l.Packed {
		var both tape.Tensor
		if both, err = t.Call(names.Both, packed, x); err != nil {
			return tape.Tensor{}, err
		}
		parts, err := t.Parts(both, l.FFN, l.FFN)
		if err != nil {
			return tape.Tensor{}, err
		}
		if gate, err = t.Call("activation_fn", act, parts[0]); err != nil {
			return tape.Tensor{}, err
		}
		up = parts[1]
	} else {
		if gate, err = t.Call(names.Gate, in, x); err == nil && l.Thinned {
			gate, err = thin(t, gate)
		}
		if err == nil {
			gate, err = t.Call("act_fn", act, gate)
		}
		if err == nil {
			up, err = t.Call(names.Up, in, x)
		}
	}
	if err == nil {
		gate, err = tape.Mul(t, gate, up)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call(names.Down, down, gate)
}

// thin keeps only what is above a bound, relu(x - bound). The bound is computed from the mean and
// deviation of each vector.
func thin(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	one := t.Resized(x.Shape, 1)
	bound, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: one, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: one}}, BackwardWorkspace: t.Size(x)})
	if err != nil {
		return tape.Tensor{}, err
	}
	y, err := t.Op(tape.Op{In: []tape.Tensor{x, bound}, Shape: x.Shape, PassGrad: true})
	if err != nil {
		return tape.Tensor{}, err
	}
	return KeepOutput(t, y)
}

// SqueezeExcite is torchvision's SqueezeExcitation: it multiplies each channel by a number computed
// from the means of all channels (arXiv:1709.01507).
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
		tape.As("avgpool", AdaptiveAvgPool(1)),
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
