package estimate

// MLP is two linear layers with an activation between them.
type MLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is GELU
	NoBias      bool

	names *[3]string // of the first layer, the activation and the second layer
}

// gatedNames are those of the projections where they are packed.
// gatedNames are those of the projections: gate and up, or both where they are Packed.
type gatedNames struct{ gate, up, both, down string }

var llamaMLP = &gatedNames{"gate_proj", "up_proj", "gate_up_proj", "down_proj"}

var mlpNames = &[3]string{"fc1", "activation_fn", "fc2"}

// GatedMLP is down(act(gate(x)) * up(x)), as in Llama.
type GatedMLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is SiLU
	Bias        bool
	Packed      bool // one projection for gate and up

	thinned bool        // few elements of the gate are not 0
	names   *gatedNames // nil for Llama's
}

func (l MLP) parts() (up, act, down Layer) {
	return Linear{In: l.Hidden, Out: l.FFN, NoBias: l.NoBias, Split: ByColumns},
		l.Activation.layer(UseGELU),
		Linear{In: l.FFN, Out: l.Hidden, NoBias: l.NoBias, Split: ByRows}
}

// Declare implements Layer.
func (l MLP) Declare(d *Declaration) {
	up, act, down := l.parts()
	n := or(l.names, mlpNames)
	d.Layer(n[0], up)
	d.Layer(n[1], act)
	d.Layer(n[2], down)
}

// Forward implements Layer.
func (l MLP) Forward(t *Tape, x Tensor) (Tensor, error) {
	up, act, down := l.parts()
	n := or(l.names, mlpNames)
	x, err := t.Call(n[0], up, x)
	if err == nil {
		x, err = t.Call(n[1], act, x)
	}
	if err == nil {
		x, err = t.Call(n[2], down, x)
	}
	return x, err
}

func (l GatedMLP) parts() (up, packed Linear, act Layer, down Linear) {
	in := Linear{In: l.Hidden, Out: l.FFN, NoBias: !l.Bias, Split: ByColumns}
	both := in
	both.Out *= 2
	return in, both, l.Activation.layer(UseSiLU), Linear{In: l.FFN, Out: l.Hidden, NoBias: !l.Bias, Split: ByRows}
}

// Declare implements Layer.
func (l GatedMLP) Declare(d *Declaration) {
	if !d.want("FFN", l.FFN, 1) {
		return
	}
	up, packed, act, down := l.parts()
	names := or(l.names, llamaMLP)
	if l.Packed {
		d.Layer(names.both, packed)
		d.Layer("activation_fn", act)
	} else {
		d.Layer(names.gate, up)
		d.Layer("act_fn", act)
		d.Layer(names.up, up)
	}
	d.Layer(names.down, down)
}

// Forward implements Layer.
func (l GatedMLP) Forward(t *Tape, x Tensor) (Tensor, error) {
	in, packed, act, down := l.parts()
	names := or(l.names, llamaMLP)
	var gate, up Tensor
	var err error
	if l.Packed {
		var both Tensor
		if both, err = t.Call(names.both, packed, x); err != nil {
			return Tensor{}, err
		}
		parts, err := t.parts(both, l.FFN, l.FFN)
		if err != nil {
			return Tensor{}, err
		}
		if gate, err = t.Call("activation_fn", act, parts[0]); err != nil {
			return Tensor{}, err
		}
		up = parts[1]
	} else {
		if gate, err = t.Call(names.gate, in, x); err == nil && l.thinned {
			gate, err = thin(t, gate)
		}
		if err == nil {
			gate, err = t.Call("act_fn", act, gate)
		}
		if err == nil {
			up, err = t.Call(names.up, in, x)
		}
	}
	if err == nil {
		gate, err = mul(t, gate, up)
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Call(names.down, down, gate)
}

// thin leaves what is above a bound made of mean and deviation of each vector: relu(x - bound).
func thin(t *Tape, x Tensor) (Tensor, error) {
	one := t.resized(x.Shape, 1)
	bound, err := t.Op(Op{In: []Tensor{x}, Shape: one, Keep: []Tensor{x}, KeepOwn: []Own{{Shape: one}}, BackwardWorkspace: t.size(x)})
	if err != nil {
		return Tensor{}, err
	}
	y, err := t.Op(Op{In: []Tensor{x, bound}, Shape: x.Shape, PassGrad: true})
	if err != nil {
		return Tensor{}, err
	}
	return keepOutput(t, y)
}
