package estimate

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// wideNorm is the LayerNorm of Cohere, in elementary operations in float32 and without a bias.
// Its weight has Heads x Size elements, and one dimension where there is one head.
type wideNorm struct{ Heads, Size int }

// Kind names the row.
func (wideNorm) Kind() string { return "LayerNorm" }

// Declare implements Layer.
func (l wideNorm) Declare(d *Declaration) { d.Add(Param{Name: "weight", Shape: l.shape()}) }

func (l wideNorm) shape() alloc.Shape {
	if l.Heads == 1 {
		return alloc.Shape{l.Size}
	}
	return alloc.Shape{l.Heads, l.Size}
}

// Forward implements Layer.
func (l wideNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.width(x, -1, l.Size, "features"); err != nil {
		return Tensor{}, err
	}
	wide := Own{Shape: x.Shape, DType: alloc.Float32}
	o := Op{
		In: []Tensor{x}, Shape: x.Shape, Params: true,
		// What the mean was taken away from, twice, and the root of the variance.
		KeepOwn: []Own{wide, wide, {Shape: t.resized(x.Shape, 1), DType: alloc.Float32}},
		FLOPs:   flops(x.Shape, 5), BackwardWorkspace: 2 * t.size(x),
	}
	if t.learns() {
		o.KeepOwn = append(o.KeepOwn, wide)
	}
	if x.DType.Bits() < 32 {
		o.KeepOwn = append(o.KeepOwn, Own{Shape: l.shape(), DType: alloc.Float32})
	}
	return t.Op(o)
}

// plainNorm is the LayerNorm of OLMo, in float32 and without weight and bias.
type plainNorm struct{ Size int }

// Kind names the row.
func (plainNorm) Kind() string { return "LayerNorm" }

// Declare implements Layer.
func (plainNorm) Declare(*Declaration) {}

// Forward implements Layer.
func (l plainNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	d := x.DType
	var err error
	if d.Bits() < 32 {
		if x, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32}); err != nil {
			return Tensor{}, err
		}
	}
	y, err := LayerNorm{Size: l.Size, NoAffine: true}.Forward(t, x)
	if err != nil || y.DType == d {
		return y, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: d})
}

// shiftedNorm is the LayerNorm of Nemotron, which multiplies by 1 + weight and keeps the sum.
type shiftedNorm struct{ Size int }

// Kind names the row.
func (shiftedNorm) Kind() string { return "LayerNorm" }

// Declare implements Layer.
func (l shiftedNorm) Declare(d *Declaration) { LayerNorm{Size: l.Size}.Declare(d) }

// Forward implements Layer.
func (l shiftedNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.width(x, -1, l.Size, "features"); err != nil {
		return Tensor{}, err
	}
	stats := Own{Shape: t.resized(x.Shape, 1), DType: t.statistics(x)}
	return t.Op(Op{
		In: []Tensor{x}, Shape: x.Shape, Params: true, Keep: []Tensor{x},
		KeepOwn: []Own{stats, stats, {Shape: alloc.Shape{l.Size}}}, FLOPs: flops(x.Shape, 5),
	})
}

// eachHead is a LayerNorm without a bias for each head by itself, as in StableLM. It reads
// heads before the length.
type eachHead struct{ Heads, Size int }

// Kind names the row.
func (eachHead) Kind() string { return "LayerNorms" }

// Declare implements Layer.
func (l eachHead) Declare(d *Declaration) {
	for i := range l.Heads {
		if !d.Layer("norms."+strconv.Itoa(i), LayerNorm{Size: l.Size, NoBias: true}) {
			return
		}
	}
}

// Forward implements Layer.
func (l eachHead) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, heads, length, size)"); err != nil {
		return Tensor{}, err
	}
	if err := t.width(x, 1, l.Heads, "heads"); err != nil {
		return Tensor{}, err
	}
	heads := make([]Tensor, l.Heads)
	for i := range heads {
		one, err := t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], 1, x.Shape[2], x.Shape[3]}, View: true})
		if err == nil {
			heads[i], err = t.Call("norms."+strconv.Itoa(i), LayerNorm{Size: l.Size, NoBias: true}, one)
		}
		if err != nil {
			return Tensor{}, err
		}
	}
	return Cat(t, 1, heads...)
}

// multiple multiplies by a number that is not a tensor.
type multiple struct{}

// Declare implements Layer.
func (multiple) Declare(*Declaration) {}

// Forward implements Layer.
func (multiple) Forward(t *Tape, x Tensor) (Tensor, error) {
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
}
