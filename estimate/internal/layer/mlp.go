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

func (l MLP) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	up, act, down := l.parts()
	n := setting.Or(l.Names, MlpNames)
	x = t.Call(n[0], up, x)
	x = t.Call(n[1], act, x)
	return t.Call(n[2], down, x)
}

func (l GatedMLP) parts() (up, packed Linear, act tape.Layer, down Linear) {
	in := Linear{In: l.Hidden, Out: l.FFN, NoBias: !l.Bias, Split: ByColumns}
	both := in
	both.Out *= 2
	return in, both, l.Activation.Layer(UseSiLU), Linear{In: l.FFN, Out: l.Hidden, NoBias: !l.Bias, Split: ByRows}
}

func (l GatedMLP) Declare(d *tape.Declaration) {
	d.Want("FFN", l.FFN, 1)
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

func (l GatedMLP) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	in, packed, act, down := l.parts()
	names := setting.Or(l.Names, llamaMLP)
	var gate, up tape.Tensor
	if l.Packed {
		both := t.Call(names.Both, packed, x)
		parts := t.Parts(both, l.FFN, l.FFN)
		gate = t.Call("activation_fn", act, parts[0])
		up = parts[1]
	} else {
		if gate = t.Call(names.Gate, in, x); l.Thinned {
			gate = thin(t, gate)
		}
		gate = t.Call("act_fn", act, gate)
		up = t.Call(names.Up, in, x)
	}
	gate = t.Mul(gate, up)
	return t.Call(names.Down, down, gate)
}

// thin keeps only what is above a bound, relu(x - bound). The bound is computed from the mean and
// deviation of each vector.
func thin(t *tape.Tape, x tape.Tensor) tape.Tensor {
	one := t.Resized(x.Shape, 1)
	bound := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: one, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: one}}, BackwardWorkspace: t.Size(x)})
	y := t.Op(tape.Op{In: []tape.Tensor{x, bound}, Shape: x.Shape, PassGrad: true})
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

func (l SqueezeExcite) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	scale := l.parts().Forward(t, x)
	return t.Mul(x, scale)
}
