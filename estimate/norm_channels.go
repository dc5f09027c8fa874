package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// InstanceNorm is nn.InstanceNorm1d, 2d and 3d. It keeps its input and two numbers for each channel
// of each sample, and with Affine the weight for each of them.
type InstanceNorm struct {
	Features int
	Affine   bool
}

// LayerNorm2d is torchvision's: a LayerNorm over the channels of (batch, channels, height, width).
// It keeps its input, and two numbers a pixel.
type LayerNorm2d struct{ Channels int }

// LocalResponseNorm is nn.LocalResponseNorm over (batch, channels, ...), in elementary operations.
type LocalResponseNorm struct{ Size int }

// Declare implements Layer.
func (l InstanceNorm) Declare(d *Declaration) {
	if d.want("Features", l.Features, 1) {
		affine(d, l.Features, !l.Affine, false)
	}
}

// Declare implements Layer.
func (l LayerNorm2d) Declare(d *Declaration) { LayerNorm{Size: l.Channels}.Declare(d) }

// Declare implements Layer.
func (l LocalResponseNorm) Declare(d *Declaration) { d.want("Size", l.Size, 1) }

// Forward implements Layer.
func (l InstanceNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(x.Shape) < 3 {
		return Tensor{}, t.Errorf("input %v has nothing after its channels: want (batch, %d, ...)", x.Shape, l.Features)
	}
	if err := t.width(x, 1, l.Features, "channels"); err != nil {
		return Tensor{}, err
	}
	each := Own{Shape: x.Shape[:2], DType: alloc.Float32}
	own := []Own{each, each}
	if l.Affine {
		own = append(own, Own{Shape: x.Shape[:2]})
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, Params: l.Affine, Keep: []Tensor{x}, KeepOwn: own, FLOPs: flops(x.Shape, 4)})
}

// Forward implements Layer. The gradient that the norm makes is in the order of the pixels, and is copied.
func (l LayerNorm2d) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return Tensor{}, err
	}
	y, err := Permute{[]int{0, 2, 3, 1}}.Forward(t, x)
	if err == nil {
		y, err = LayerNorm{Size: l.Channels}.Forward(t, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return Permute{[]int{0, 3, 1, 2}}.Forward(t, y)
}

// Forward implements Layer.
func (l LocalResponseNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(x.Shape) < 3 {
		return Tensor{}, t.Errorf("input %v has nothing after its channels", x.Shape)
	}
	if x.Shape[1] > maxField || l.Size > maxField {
		return Tensor{}, t.Errorf("input %v has too many channels", x.Shape)
	}
	padded := x.Shape.Clone()
	padded[1] += l.Size - 1
	f := Flow{t: t}
	squared := f.Op(Op{In: []Tensor{x}, Shape: x.Shape, Keep: []Tensor{x}})
	wide := f.Op(Op{In: []Tensor{squared}, Shape: padded})
	sum := f.Op(Op{In: []Tensor{wide}, Shape: x.Shape, Keep: []Tensor{wide}})
	sum = f.Scale(f.Scale(sum))
	power := f.Op(Op{In: []Tensor{sum}, Shape: x.Shape, Keep: []Tensor{sum}})
	y := f.Mul(x, power) // a division keeps the same
	return y, f.err
}
