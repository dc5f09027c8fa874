package layer

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Hardswish nn.Hardswish

type Hardsigmoid nn.Hardsigmoid

type LeakyReLU nn.LeakyReLU

type ELU nn.ELU

type Mish nn.Mish

type PReLU nn.PReLU

func (Hardswish) Declare(*tape.Declaration) {}

func (Hardsigmoid) Declare(*tape.Declaration) {}

func (LeakyReLU) Declare(*tape.Declaration) {}

func (ELU) Declare(*tape.Declaration) {}

func (Mish) Declare(*tape.Declaration) {}

func (l PReLU) Declare(d *tape.Declaration) {
	if d.Want("Num", setting.Or(l.Num, 1), 1) {
		d.Param("weight", setting.Or(l.Num, 1))
	}
}

func (l Hardswish) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return KeepInput(t, x, l.InPlace)
}

func (Hardsigmoid) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return KeepInput(t, x, false)
}

func (l LeakyReLU) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return keepEither(t, x, l.InPlace)
}

func (l ELU) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return keepEither(t, x, l.InPlace)
}

func (Mish) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) { return KeepInput(t, x, false) }

func (l PReLU) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if n := setting.Or(l.Num, 1); n > 1 {
		if err := t.Width(x, 1, n, "channels"); err != nil {
			return tape.Tensor{}, err
		}
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, Params: true})
}

// keepEither keeps the input, and in place the output.
func keepEither(t *tape.Tape, x tape.Tensor, inPlace bool) (tape.Tensor, error) {
	if !inPlace {
		return KeepInput(t, x, false)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: true, KeepOutput: true})
}
