package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Flatten nn.Flatten

func (l Flatten) Declare(d *tape.Declaration) { d.Want("Start", l.Start, 0) }

func (l Flatten) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	start := setting.Or(l.Start, 1)
	if start >= len(x.Shape) {
		return tape.Tensor{}, t.Errorf("input %v has no dimension %d to flatten from", x.Shape, start)
	}
	n, err := x.Shape[start:].Elements()
	if err != nil {
		return tape.Tensor{}, t.Wrap("input", err)
	}
	shape := append(x.Shape[:start:start], int(n))
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, View: true})
}

type Reshape nn.Reshape

func (l Reshape) Declare(d *tape.Declaration) {
	unknown := 0
	for _, n := range l.Dims {
		if n == -1 {
			unknown++
		} else if !d.Want("each of Dims", n, 1) {
			return
		}
	}
	if unknown > 1 {
		d.Errorf("Dims are %v: at most one may be -1", l.Dims)
	}
}

func (l Reshape) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if len(x.Shape) == 0 {
		return tape.Tensor{}, t.Errorf("input () has no batch")
	}
	return tape.Seen(t, x, append([]int{x.Shape[0]}, l.Dims...))
}

type PixelShuffle nn.PixelShuffle

func (l PixelShuffle) Declare(d *tape.Declaration) { d.Want("Factor", l.Factor, 1) }

func (l PixelShuffle) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return tape.Tensor{}, err
	}
	square := int64(l.Factor) * int64(l.Factor)
	if l.Factor < 1 || int64(x.Shape[1])%square != 0 || max(x.Shape[2], x.Shape[3]) > setting.MaxField {
		return tape.Tensor{}, t.Errorf("input %v does not have channels for pixels of %d x %d", x.Shape, l.Factor, l.Factor)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], int(int64(x.Shape[1]) / square), x.Shape[2] * l.Factor, x.Shape[3] * l.Factor}})
}
