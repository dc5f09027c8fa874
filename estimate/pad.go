package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// ZeroPad2d is nn.ZeroPad2d over (batch, channels, height, width); it keeps nothing. Numbers below
// zero cut pixels off.
type ZeroPad2d struct{ Left, Right, Top, Bottom int }

// Declare implements Layer.
func (l ZeroPad2d) Declare(d *Declaration) {
	d.wantAll(setting{"Left", l.Left, -maxField}, setting{"Right", l.Right, -maxField}, setting{"Top", l.Top, -maxField}, setting{"Bottom", l.Bottom, -maxField})
}

// Forward implements Layer.
func (l ZeroPad2d) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return Tensor{}, err
	}
	high, wide := int64(x.Shape[2])+int64(l.Top)+int64(l.Bottom), int64(x.Shape[3])+int64(l.Left)+int64(l.Right)
	if min(high, wide) < 1 || max(high, wide) > maxField {
		return Tensor{}, t.Errorf("input %v padded to %d x %d pixels: want at least one, and at most %d a side", x.Shape, high, wide, maxField)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[1], int(high), int(wide)}})
}
