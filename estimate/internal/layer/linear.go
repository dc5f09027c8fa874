package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Linear nn.Linear

// How tensor parallelism splits a Linear, which is whole without a word.
const (
	ByColumns = "columns"
	ByRows    = "rows"
)

func (l Linear) Declare(d *tape.Declaration) {
	d.Want("In", l.In, 1)
	d.Want("Out", l.Out, 1)
	if l.Split != "" && l.Split != ByColumns && l.Split != ByRows {
		d.Failf("Split is %q: want columns or rows", l.Split)
	}
	weight := tape.Param{Name: "weight", Shape: alloc.Shape{l.Out, l.In}, Tied: l.Tied, Split: l.Split != ""}
	if d.Quantizes() {
		d.AddQuantized(d.Cfg.Quantized.Base, weight)
	} else {
		d.Add(weight)
	}
	if !l.NoBias {
		d.Add(tape.Param{Name: "bias", Shape: alloc.Shape{l.Out}, Split: l.Split == ByColumns})
	}
	if d.Adapts() {
		a, b := adapters(d.Cfg.Lora, l)
		d.Layer("lora_A", a)
		d.Layer("lora_B", b)
	}
}

func (l Linear) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Width(x, -1, l.In, "features")
	if x.DType == alloc.Int64 || x.DType == alloc.Int32 || x.DType == alloc.Bool {
		t.Failf("input %v is of %v, which is not multiplied: an Embedding reads Tokens", x.Shape, x.DType)
	}
	Ran.Of(t).Multiplies = true
	in := x
	x = t.Lower(x)
	if in.Strewn() { // matmul folds the rows into one dimension
		x = t.Copy(x)
	}
	shape := t.Resized(x.Shape, l.Out)
	reads := []tape.Tensor{x}
	o := tape.Op{
		In: reads, Shape: shape, DType: t.Computes(), Params: true, Keep: t.ForWeights(reads),
		Split: l.Split == ByColumns && t.Cfg.Sharding.Tensor > 1, Gather: l.Split == ByRows,
		FLOPs: setting.Flops(shape, l.In, 2), As: tape.AddMM,
	}
	if l.NoBias {
		o.As = tape.MM
	}
	at, returns := t.DeclaredPath(), o.DType
	if q := t.Cfg.Quantized; q.Holds(at) {
		returns = t.QuantizedReturns(in, o.DType)
		t.QuantizedProduct(&o, alloc.Shape{l.Out, l.In})
	} else {
		t.Cast(&o, l.Out, l.In)
	}
	y := t.Op(o)
	y = t.In(returns, y)
	lora := t.Cfg.Lora
	if lora == nil {
		return y
	}
	if setting.Matches(lora.Targets, at) && !t.Cfg.Excludes(at) {
		return addAdapters(lora, t, l, in, y)
	}
	return y
}

// adapter is one of the two projections of an adapter, which is trained.
type adapter struct {
	Linear
	dtype alloc.DType
}

// Adapts marks a layer that is trained although all others are frozen.
func (adapter) Adapts() {}

func (adapter) Kind() string { return "Linear" }

func (a adapter) Declare(d *tape.Declaration) {
	d.Want("In", a.In, 1)
	d.Want("Out", a.Out, 1)
	d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{a.Out, a.In}, DType: a.dtype, Split: a.Split != ""})
}

func (a adapter) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := t.Resized(x.Shape, a.Out)
	return t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: shape, DType: a.dtype, Params: true, Keep: []tape.Tensor{x},
		Split: a.Split == ByColumns && t.Cfg.Sharding.Tensor > 1, FLOPs: setting.Flops(shape, a.In, 2), As: tape.MM,
	})
}

// adapters returns the two projections of the adapter of a Linear.
func adapters(l *setting.LoRA, of Linear) (a, b adapter) {
	d := setting.Or(l.DType, alloc.Float32)
	a = adapter{Linear{In: of.In, Out: l.Rank, NoBias: true}, d}
	b = adapter{Linear{In: l.Rank, Out: of.Out, NoBias: true, Split: of.Split}, d}
	if of.Split == ByRows {
		b.Split = ""
	}
	return a, b
}

// addAdapters adds the adapter's output for x to y (PEFT's lora.Linear.forward): x is cast to the
// adapter's type, multiplied twice, scaled, and added in the type of y.
func addAdapters(l *setting.LoRA, t *tape.Tape, of Linear, x, y tape.Tensor) tape.Tensor {
	a, b := adapters(l, of)
	x = t.In(a.dtype, x)
	if l.Dropout > 0 {
		x = (Dropout{P: l.Dropout}).Forward(t, x)
	}
	z := t.Call("lora_A", a, x)
	z = t.Call("lora_B", b, z)
	z = t.Scale(z)
	whole := y.DType
	if whole.Bits() >= z.DType.Bits() {
		return t.Op(tape.Op{In: []tape.Tensor{y, z}, Shape: y.Shape, PassGrad: true})
	}
	// The sum has the wider type and is then cast back.
	y = t.Op(tape.Op{In: []tape.Tensor{y, z}, Shape: y.Shape, DType: z.DType})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, DType: whole})
}
