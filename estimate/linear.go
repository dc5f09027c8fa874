package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Linear is y = xW' + b over the last dimension, as nn.Linear. It keeps its
// input, or the copy that it makes of one whose dimensions were permuted.
type Linear struct {
	In, Out int
	NoBias  bool
	// Tied is the path of the parameter that serves as the weight; see Param.
	Tied string
	// Split divides the layer among the devices of a tensor parallel group.
	Split Split
}

// Split is how tensor parallelism cuts the weight of a Linear
// (arXiv:1909.08053, section 3).
type Split uint8

// The ways to split.
const (
	Whole     Split = iota // each device has all of it
	ByColumns              // each device computes a part of the outputs
	ByRows                 // each device reads a part of the inputs; the sum is whole
)

// Declare implements Layer.
func (l Linear) Declare(d *Declaration) {
	if !d.want("In", l.In, 1) || !d.want("Out", l.Out, 1) {
		return
	}
	if l.Split > ByRows {
		d.Errorf("Split is %d: want Whole, ByColumns or ByRows", l.Split)
		return
	}
	weight := Param{Name: "weight", Shape: alloc.Shape{l.Out, l.In}, Tied: l.Tied, Split: l.Split != Whole}
	if d.quantizes() {
		d.cfg.quantized.Base.weight(d, weight)
	} else {
		d.Add(weight)
	}
	if !l.NoBias {
		d.Add(Param{Name: "bias", Shape: alloc.Shape{l.Out}, Split: l.Split == ByColumns})
	}
	if d.adapts() {
		a, b := d.cfg.lora.parts(l)
		d.Layer("lora_A", a)
		d.Layer("lora_B", b)
	}
}

// Forward implements Layer.
func (l Linear) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.width(x, -1, l.In, "features"); err != nil {
		return Tensor{}, err
	}
	if x.DType == alloc.Int64 || x.DType == alloc.Int32 || x.DType == alloc.Bool {
		return Tensor{}, t.Errorf("input %v is of %v, which is not multiplied: an Embedding reads Tokens", x.Shape, x.DType)
	}
	t.multiplies = true
	in := x
	x, err := t.lower(x)
	if err != nil {
		return Tensor{}, err
	}
	if in.strewn { // matmul folds the rows into one dimension
		if x, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape}); err != nil {
			return Tensor{}, err
		}
	}
	shape := t.resized(x.Shape, l.Out)
	reads := []Tensor{x}
	o := Op{
		In: reads, Shape: shape, DType: t.computes(), Params: true, Keep: t.forWeights(reads),
		Split: l.Split == ByColumns && t.cfg.sharding.Tensor > 1, Gather: l.Split == ByRows,
		FLOPs: flops(shape, l.In, 2),
	}
	at, returns := t.declaredPath(), o.DType
	if q := t.cfg.quantized; q.holds(at) {
		returns = q.returns(in, o.DType)
		if err := q.product(t, &o, alloc.Shape{l.Out, l.In}); err != nil {
			return Tensor{}, err
		}
	} else {
		t.cast(&o, l.Out, l.In)
	}
	y, err := t.Op(o)
	if err == nil && y.DType != returns {
		y, err = t.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: returns})
	}
	lora := t.cfg.lora
	if err != nil || lora == nil {
		return y, err
	}
	if named(lora.Targets, at) && !t.cfg.excludes(at) {
		return lora.beside(t, l, in, y)
	}
	return y, nil
}

// whole is the size of a weight in a type, on one device.
func (t *Tape) whole(shape alloc.Shape, d alloc.DType) alloc.Bytes {
	n, err := shape.Bytes(d)
	if err != nil {
		return 0 // the declaration has reported it
	}
	return min(n/alloc.Bytes(t.cfg.sharding.Tensor), maxTotal)
}

// adapter is one of the two projections of an adapter, which is trained.
type adapter struct {
	Linear
	dtype alloc.DType
}

// adapts marks what is trained where all else is frozen.
func (adapter) adapts() {}

// Kind names the row.
func (adapter) Kind() string { return "Linear" }

// Declare implements Layer.
func (a adapter) Declare(d *Declaration) {
	if d.want("In", a.In, 1) && d.want("Out", a.Out, 1) {
		d.Add(Param{Name: "weight", Shape: alloc.Shape{a.Out, a.In}, DType: a.dtype, Split: a.Split != Whole})
	}
}

// Forward implements Layer.
func (a adapter) Forward(t *Tape, x Tensor) (Tensor, error) {
	shape := t.resized(x.Shape, a.Out)
	return t.Op(Op{
		In: []Tensor{x}, Shape: shape, DType: a.dtype, Params: true, Keep: []Tensor{x},
		Split: a.Split == ByColumns && t.cfg.sharding.Tensor > 1, FLOPs: flops(shape, a.In, 2),
	})
}

// parts are the projections of the adapter beside a Linear.
func (l *LoRA) parts(of Linear) (a, b adapter) {
	d := or(l.DType, alloc.Float32)
	a = adapter{Linear{In: of.In, Out: l.Rank, NoBias: true}, d}
	b = adapter{Linear{In: l.Rank, Out: of.Out, NoBias: true, Split: of.Split}, d}
	if of.Split == ByRows {
		b.Split = Whole
	}
	return a, b
}

// beside adds to y what the adapter makes of x (PEFT's lora.Linear.forward): x in the type of the
// adapter, the two products, their multiple, and the sum in the type of y.
func (l *LoRA) beside(t *Tape, of Linear, x, y Tensor) (Tensor, error) {
	a, b := l.parts(of)
	var err error
	if x.DType != a.dtype {
		if x, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: a.dtype}); err != nil {
			return Tensor{}, err
		}
	}
	if l.Dropout > 0 {
		if x, err = (Dropout{P: l.Dropout}).Forward(t, x); err != nil {
			return Tensor{}, err
		}
	}
	z, err := t.Call("lora_A", a, x)
	if err == nil {
		z, err = t.Call("lora_B", b, z)
	}
	if err == nil {
		z, err = t.Op(Op{In: []Tensor{z}, Shape: z.Shape})
	}
	if err != nil {
		return Tensor{}, err
	}
	whole := y.DType
	if whole.Bits() >= z.DType.Bits() {
		return t.Op(Op{In: []Tensor{y, z}, Shape: y.Shape, PassGrad: true})
	}
	// The sum takes the wider type, in which both are copied back.
	if y, err = t.Op(Op{In: []Tensor{y, z}, Shape: y.Shape, DType: z.DType}); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: whole})
}
