package layer

import (
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// BatchNorm is an nn.BatchNorm, or one without the weight and bias or the running statistics.
type BatchNorm struct {
	Features int
	NoAffine bool
	NoStats  bool
}

type LayerNorm nn.LayerNorm

type GroupNorm nn.GroupNorm

// RMSNorm is nn.RMSNorm over the last dimension. On CUDA it keeps its input and one number for each
// vector. On the CPU, or if Unfused, it also keeps its normalised input.
type RMSNorm struct {
	Size int
	// Unfused is the norm in elementary operations in float32, as transformers writes it.
	Unfused bool
	// Shifted multiplies by 1 + weight, as Gemma does, and keeps that sum.
	Shifted bool
	// Late rounds to the input's type after the multiplication by the weight instead of before, as
	// OLMo 2 does. Shifted norms, and norms that are not Unfused, always do.
	Late bool

	Mixed   bool // the input is multiplied in its own type, as in T5
	Powered bool // the root is a power, whose base is kept, and the weight is cast to float32, as in Gemma 3n
	Plain   bool // there is no weight
	Widens  bool // the weight is cast to float32, as in Nemotron-H
}

func (l BatchNorm) Declare(d *tape.Declaration) {
	d.Want("Features", l.Features, 1)
	affine(d, l.Features, l.NoAffine, false)
	if !l.NoStats {
		d.Buffer("running_mean", l.Features)
		d.Buffer("running_var", l.Features)
		d.Add(tape.Param{Name: "num_batches_tracked", Shape: alloc.Shape{}, DType: alloc.Int64, Buffer: true})
	}
}

func (l LayerNorm) Declare(d *tape.Declaration) {
	d.Want("Size", l.Size, 1)
	affine(d, l.Size, l.NoAffine, l.NoBias)
}

func (l GroupNorm) Declare(d *tape.Declaration) {
	d.Want("Groups", l.Groups, 1)
	d.Want("Channels", l.Channels, 1)
	if l.Channels%l.Groups != 0 {
		d.Failf("%d Channels do not divide into %d Groups", l.Channels, l.Groups)
	}
	affine(d, l.Channels, false, false)
}

func (l RMSNorm) Declare(d *tape.Declaration) {
	d.Want("Size", l.Size, 1)
	if !l.Plain {
		d.Param("weight", l.Size)
	}
}

func affine(d *tape.Declaration, n int, none, noBias bool) {
	if none {
		return
	}
	d.Param("weight", n)
	if !noBias {
		d.Param("bias", n)
	}
}

// Kind returns the name of one of PyTorch's three types: BatchNorm1d, 2d or 3d.
func (l BatchNorm) Kind() string { return "BatchNorm" }

func (l BatchNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 2 {
		t.Failf("input %v has no channels: want (batch, %d, ...)", x.Shape, l.Features)
	}
	t.Width(x, 1, l.Features, "channels")
	stats := tape.Own{Shape: alloc.Shape{l.Features}, DType: alloc.Float32}
	if d := t.Cfg.Weights; t.On() == setting.CPU && d.Bits() < 32 {
		stats.DType = d // the CPU's kernel keeps them in the type of the weights
	}
	return t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: !l.NoAffine,
		Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{stats, stats}, FLOPs: setting.Flops(x.Shape, 4),
	})
}

func (l LayerNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(l.op(t, x))
}

func (l LayerNorm) op(t *tape.Tape, x tape.Tensor) tape.Op {
	t.Width(x, -1, l.Size, "features")
	x = t.Raise(x)
	stats := tape.Own{Shape: t.Resized(x.Shape, 1), DType: statistics(t, x)}
	return tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: !l.NoAffine,
		Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{stats, stats}, FLOPs: setting.Flops(x.Shape, 5),
	}
}

// TurnedNorm is a LayerNorm of a view whose dimensions are turned. The kernel reads a contiguous copy of it, and in the
// backward pass another, and one of the gradient (ATen/native/layer_norm.cpp, expect_contiguous).
type TurnedNorm struct{ LayerNorm }

// Kind names the row.
func (TurnedNorm) Kind() string { return "LayerNorm" }

func (l TurnedNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	o := l.op(t, x)
	o.Workspace, o.BackwardWorkspace = t.Size(x), 2*t.Size(x)
	return t.Op(o)
}

// statistics returns the type of a norm's mean and deviation: on CUDA at least float32, on the CPU
// the input's type.
func statistics(t *tape.Tape, x tape.Tensor) alloc.DType {
	if t.On() == setting.CPU || x.DType.Bits() > 32 {
		return x.DType
	}
	return alloc.Float32
}

func (l GroupNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 2 {
		t.Failf("input %v has no channels: want (batch, %d, ...)", x.Shape, l.Channels)
	}
	t.Width(x, 1, l.Channels, "channels")
	x = t.Raise(x)
	stats := tape.Own{Shape: alloc.Shape{x.Shape[0], l.Groups}}
	return t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: true,
		Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{stats, stats}, FLOPs: setting.Flops(x.Shape, 5),
	})
}

func (l RMSNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Width(x, -1, l.Size, "features")
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: !l.Plain, Keep: []tape.Tensor{x},
		KeepOwn: []tape.Own{{Shape: t.Resized(x.Shape, 1), DType: alloc.Float32}},
		FLOPs:   setting.Flops(x.Shape, 4),
	}
	if l.Powered {
		o.KeepOwn = append(o.KeepOwn, o.KeepOwn[0])
	}
	if !l.Unfused && t.On() == setting.CUDA {
		return t.Op(o)
	}
	wide := x.DType.Bits() < 32
	if wide { // the input is copied to float32, and the copy is kept
		if !l.Mixed {
			o.Keep = nil
		}
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: x.Shape, DType: alloc.Float32})
	}
	if t.Cfg.Release.KeepsMeans() {
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: x.Shape, DType: tape.Widest([]tape.Tensor{x, {DType: alloc.Float32}})})
	}
	if !x.NeedsGrad() { // only the weight has a gradient
		o.Keep, o.KeepOwn = nil, nil
	}
	normal := tape.Own{Shape: x.Shape}
	if wide && (l.Shifted || l.Late || !l.Unfused) {
		normal.DType = alloc.Float32
	}
	if t.Learns() && !l.Plain { // for the gradient of the weight
		o.KeepOwn = append(o.KeepOwn, normal)
	} else {
		o.Workspace, _ = normal.Shape.Bytes(setting.Or(normal.DType, x.DType))
		o.Workspace = min(o.Workspace, setting.MaxTotal)
	}
	if wide && !l.Unfused && !l.Plain { // the product with the weight is made in float32
		product := t.Size(tape.Tensor{Shape: x.Shape, DType: alloc.Float32})
		o.Workspace += product - min(product, t.Size(x)) // the cast comes when less is held
	}
	if l.Shifted || (l.Powered || l.Widens) && wide && !l.Plain {
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: alloc.Shape{l.Size}, DType: alloc.Float32})
	}
	// The derivative of the mean of squares takes five float32 tensors like the input. Some of them
	// stand for the gradients of input and output and, by then, for the normalised input.
	o.BackwardWorkspace = 2 * t.Size(x)
	if wide {
		o.BackwardWorkspace = 5 * 4 * t.Size(x) / alloc.Bytes(x.DType.Bits()/8)
		o.BackwardWorkspace -= 3 * t.Size(x)
	}
	return t.Op(o)
}

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
