package layer

import (
	"slices"
	"strconv"

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
	d.Want("Features", l.Features, 1)
	affine(d, l.Features, !l.Affine, false)
}

func (l LayerNorm2d) Declare(d *tape.Declaration) { LayerNorm{Size: l.Channels}.Declare(d) }

func (l LocalResponseNorm) Declare(d *tape.Declaration) { d.Want("the size", int(l), 1) }

func (l InstanceNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 3 {
		t.Failf("input %v has nothing after its channels: want (batch, %d, ...)", x.Shape, l.Features)
	}
	t.Width(x, 1, l.Features, "channels")
	each := tape.Own{Shape: x.Shape[:2], DType: alloc.Float32}
	own := []tape.Own{each, each}
	if l.Affine {
		own = append(own, tape.Own{Shape: x.Shape[:2]})
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Params: l.Affine, Keep: []tape.Tensor{x}, KeepOwn: own, FLOPs: setting.Flops(x.Shape, 4)})
}

// Forward permutes, norms and permutes back. The norm's gradient has the order of the pixels, and
// is copied.
func (l LayerNorm2d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	y := tape.Permute{0, 2, 3, 1}.Forward(t, x)
	y = LayerNorm{Size: l.Channels}.Forward(t, y)
	return tape.Permute{0, 3, 1, 2}.Forward(t, y)
}

func (l LocalResponseNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 3 {
		t.Failf("input %v has nothing after its channels", x.Shape)
	}
	if x.Shape[1] > setting.MaxField || int(l) > setting.MaxField {
		t.Failf("input %v has too many channels", x.Shape)
	}
	padded := slices.Clone(x.Shape)
	padded[1] += int(l) - 1
	squared := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}})
	wide := t.Op(tape.Op{In: []tape.Tensor{squared}, Shape: padded})
	sum := t.Op(tape.Op{In: []tape.Tensor{wide}, Shape: x.Shape, Keep: []tape.Tensor{wide}})
	sum = t.Scale(t.Scale(sum))
	power := t.Op(tape.Op{In: []tape.Tensor{sum}, Shape: x.Shape, Keep: []tape.Tensor{sum}})
	return t.Mul(x, power) // a division would keep the same
}

// WideNorm is the LayerNorm of Cohere, in elementary operations in float32 and without a bias. Its
// weight has Heads x Size elements, in one dimension if there is one head.
type WideNorm struct{ Heads, Size int }

func (WideNorm) Kind() string { return "LayerNorm" }

func (l WideNorm) Declare(d *tape.Declaration) { d.Add(tape.Param{Name: "weight", Shape: l.shape()}) }

func (l WideNorm) shape() alloc.Shape {
	if l.Heads == 1 {
		return alloc.Shape{l.Size}
	}
	return alloc.Shape{l.Heads, l.Size}
}

func (l WideNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Width(x, -1, l.Size, "features")
	wide := tape.Own{Shape: x.Shape, DType: alloc.Float32}
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: true,
		// Two tensors from which the mean was subtracted, and the root of the variance.
		KeepOwn: []tape.Own{wide, wide, {Shape: t.Resized(x.Shape, 1), DType: alloc.Float32}},
		FLOPs:   setting.Flops(x.Shape, 5), BackwardWorkspace: 2 * t.Size(x),
	}
	if t.Learns() {
		o.KeepOwn = append(o.KeepOwn, wide)
	}
	if x.DType.Bits() < 32 {
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: l.shape(), DType: alloc.Float32})
	}
	return t.Op(o)
}

// PlainNorm is the LayerNorm of OLMo, in float32 and without weight and bias.
type PlainNorm struct{ Size int }

func (PlainNorm) Kind() string { return "LayerNorm" }

func (l PlainNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	d := x.DType
	x = t.Widen(x)
	y := LayerNorm{Size: l.Size, NoAffine: true}.Forward(t, x)
	return t.In(d, y)
}

// ShiftedNorm is the LayerNorm of Nemotron, which multiplies by 1 + weight and keeps the sum.
type ShiftedNorm struct{ Size int }

func (ShiftedNorm) Kind() string { return "LayerNorm" }

func (l ShiftedNorm) Declare(d *tape.Declaration) { LayerNorm{Size: l.Size}.Declare(d) }

func (l ShiftedNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Width(x, -1, l.Size, "features")
	stats := tape.Own{Shape: t.Resized(x.Shape, 1), DType: statistics(t, x)}
	return t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{x},
		KeepOwn: []tape.Own{stats, stats, {Shape: alloc.Shape{l.Size}}}, FLOPs: setting.Flops(x.Shape, 5),
	})
}

// EachHead is a LayerNorm without a bias for each head, as in StableLM. Its input has heads before
// the length.
type EachHead struct{ Heads, Size int }

func (EachHead) Kind() string { return "LayerNorms" }

func (l EachHead) Declare(d *tape.Declaration) {
	for i := range l.Heads {
		d.Layer("norms."+strconv.Itoa(i), LayerNorm{Size: l.Size, NoBias: true})
	}
}

func (l EachHead) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, heads, length, size)")
	t.Width(x, 1, l.Heads, "heads")
	heads := make([]tape.Tensor, l.Heads)
	for i := range heads {
		one := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], 1, x.Shape[2], x.Shape[3]}, View: true})
		heads[i] = t.Call("norms."+strconv.Itoa(i), LayerNorm{Size: l.Size, NoBias: true}, one)
	}
	return t.Cat(1, heads...)
}

// Multiple multiplies its input by a plain number.
type Multiple struct{}

func (Multiple) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Copy(x)
}
