package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type ZeroPad2d nn.ZeroPad2d

func (l ZeroPad2d) Declare(d *tape.Declaration) {
	d.WantAll(tape.Setting{Name: "Left", Value: l.Left, Least: -setting.MaxField}, tape.Setting{Name: "Right", Value: l.Right, Least: -setting.MaxField}, tape.Setting{Name: "Top", Value: l.Top, Least: -setting.MaxField}, tape.Setting{Name: "Bottom", Value: l.Bottom, Least: -setting.MaxField})
}

func (l ZeroPad2d) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return tape.Tensor{}, err
	}
	high, wide := int64(x.Shape[2])+int64(l.Top)+int64(l.Bottom), int64(x.Shape[3])+int64(l.Left)+int64(l.Right)
	if min(high, wide) < 1 || max(high, wide) > setting.MaxField {
		return tape.Tensor{}, t.Errorf("input %v padded to %d x %d pixels: want at least one, and at most %d a side", x.Shape, high, wide, setting.MaxField)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[1], int(high), int(wide)}})
}
