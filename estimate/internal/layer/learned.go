package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Learned adds a learned tensor to its input, broadcast over the batch, as
// position embeddings are added.
type Learned struct {
	Name  string
	Shape alloc.Shape // such as (1, 197, 768)
}

func (l Learned) Declare(d *tape.Declaration) { d.Param(setting.Or(l.Name, "weight"), l.Shape...) }

func (l Learned) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := l.fits(t, x); err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Params: true, PassGrad: true})
}

// fits reports an input that the parameter does not broadcast to.
func (l Learned) fits(t *tape.Tape, x tape.Tensor) error {
	if len(l.Shape) > len(x.Shape) {
		return t.Errorf("input %v has fewer dimensions than the parameter, %v", x.Shape, l.Shape)
	}
	for i, n := range l.Shape {
		if have := x.Shape[len(x.Shape)-len(l.Shape)+i]; n != 1 && n != have {
			return t.Errorf("input %v does not go with the parameter, %v", x.Shape, l.Shape)
		}
	}
	return nil
}

// Scaled multiplies its input by a learned tensor, broadcast over the batch, as layer scale does
// (arXiv:2103.17239). It keeps its input.
type Scaled struct {
	Name  string      // of the parameter; empty for "weight"
	Shape alloc.Shape // such as (channels, 1, 1)
}

func (l Scaled) Declare(d *tape.Declaration) { d.Param(setting.Or(l.Name, "weight"), l.Shape...) }

func (l Scaled) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := (Learned{Shape: l.Shape}).fits(t, x); err != nil {
		return tape.Tensor{}, err
	}
	// The gradient of the parameter is a sum of one as large as x.
	reads := []tape.Tensor{x}
	return t.Op(tape.Op{In: reads, Shape: x.Shape, Params: true, Keep: t.ForWeights(reads), BackwardWorkspace: t.Size(x)})
}
