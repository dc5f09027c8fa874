package estimate

// Hardswish is nn.Hardswish. It keeps its input, and in place a copy of it.
type Hardswish struct{ InPlace bool }

// Hardsigmoid is nn.Hardsigmoid; it keeps its input.
type Hardsigmoid struct{}

// LeakyReLU is nn.LeakyReLU. It keeps its input, and in place its output.
type LeakyReLU struct{ InPlace bool }

// ELU is nn.ELU. It keeps its input, and in place its output.
type ELU struct{ InPlace bool }

// Mish is nn.Mish; it keeps its input.
type Mish struct{}

// PReLU is nn.PReLU, with a slope for all channels or for each; it keeps its input.
type PReLU struct {
	Num int // of slopes; 0 means 1
}

// Declare implements Layer.
func (Hardswish) Declare(*Declaration) {}

// Declare implements Layer.
func (Hardsigmoid) Declare(*Declaration) {}

// Declare implements Layer.
func (LeakyReLU) Declare(*Declaration) {}

// Declare implements Layer.
func (ELU) Declare(*Declaration) {}

// Declare implements Layer.
func (Mish) Declare(*Declaration) {}

// Declare implements Layer.
func (l PReLU) Declare(d *Declaration) {
	if d.want("Num", or(l.Num, 1), 1) {
		d.Param("weight", or(l.Num, 1))
	}
}

// Forward implements Layer.
func (l Hardswish) Forward(t *Tape, x Tensor) (Tensor, error) { return keepInput(t, x, l.InPlace) }

// Forward implements Layer.
func (Hardsigmoid) Forward(t *Tape, x Tensor) (Tensor, error) { return keepInput(t, x, false) }

// Forward implements Layer.
func (l LeakyReLU) Forward(t *Tape, x Tensor) (Tensor, error) { return keepEither(t, x, l.InPlace) }

// Forward implements Layer.
func (l ELU) Forward(t *Tape, x Tensor) (Tensor, error) { return keepEither(t, x, l.InPlace) }

// Forward implements Layer.
func (Mish) Forward(t *Tape, x Tensor) (Tensor, error) { return keepInput(t, x, false) }

// Forward implements Layer.
func (l PReLU) Forward(t *Tape, x Tensor) (Tensor, error) {
	if n := or(l.Num, 1); n > 1 {
		if err := t.width(x, 1, n, "channels"); err != nil {
			return Tensor{}, err
		}
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, Keep: []Tensor{x}, Params: true})
}

// keepEither keeps the input, and in place the output.
func keepEither(t *Tape, x Tensor, inPlace bool) (Tensor, error) {
	if !inPlace {
		return keepInput(t, x, false)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, InPlace: true, KeepOutput: true})
}
