package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type InstanceNorm nn.InstanceNorm

// LayerNorm2d is torchvision's: a LayerNorm over the channels of (batch, channels, height, width).
// It keeps its input, and two numbers a pixel.
type LayerNorm2d struct{ Channels int }

type LocalResponseNorm nn.LocalResponseNorm

func (l InstanceNorm) Declare(d *tape.Declaration) {
	if d.Want("Features", l.Features, 1) {
		affine(d, l.Features, !l.Affine, false)
	}
}

func (l LayerNorm2d) Declare(d *tape.Declaration) { LayerNorm{Size: l.Channels}.Declare(d) }

func (l LocalResponseNorm) Declare(d *tape.Declaration) { d.Want("Size", l.Size, 1) }

func (l InstanceNorm) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if len(x.Shape) < 3 {
		return tape.Tensor{}, t.Errorf("input %v has nothing after its channels: want (batch, %d, ...)", x.Shape, l.Features)
	}
	if err := t.Width(x, 1, l.Features, "channels"); err != nil {
		return tape.Tensor{}, err
	}
	each := tape.Own{Shape: x.Shape[:2], DType: alloc.Float32}
	own := []tape.Own{each, each}
	if l.Affine {
		own = append(own, tape.Own{Shape: x.Shape[:2]})
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Params: l.Affine, Keep: []tape.Tensor{x}, KeepOwn: own, FLOPs: setting.Flops(x.Shape, 4)})
}

// Forward implements Layer. The gradient that the norm makes is in the order of the pixels, and is copied.
func (l LayerNorm2d) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return tape.Tensor{}, err
	}
	y, err := tape.Permute{Dims: []int{0, 2, 3, 1}}.Forward(t, x)
	if err == nil {
		y, err = LayerNorm{Size: l.Channels}.Forward(t, y)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Permute{Dims: []int{0, 3, 1, 2}}.Forward(t, y)
}

func (l LocalResponseNorm) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if len(x.Shape) < 3 {
		return tape.Tensor{}, t.Errorf("input %v has nothing after its channels", x.Shape)
	}
	if x.Shape[1] > setting.MaxField || l.Size > setting.MaxField {
		return tape.Tensor{}, t.Errorf("input %v has too many channels", x.Shape)
	}
	padded := x.Shape.Clone()
	padded[1] += l.Size - 1
	f := tape.Flow{T: t}
	squared := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}})
	wide := f.Op(tape.Op{In: []tape.Tensor{squared}, Shape: padded})
	sum := f.Op(tape.Op{In: []tape.Tensor{wide}, Shape: x.Shape, Keep: []tape.Tensor{wide}})
	sum = f.Scale(f.Scale(sum))
	power := f.Op(tape.Op{In: []tape.Tensor{sum}, Shape: x.Shape, Keep: []tape.Tensor{sum}})
	y := f.Mul(x, power) // a division keeps the same
	return y, f.Fault
}
