package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Linear nn.Linear

// How tensor parallelism splits a Linear, which is whole if it is empty.
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
		AddQuantized(d, weight)
	} else {
		d.Add(weight)
	}
	if !l.NoBias {
		d.Add(tape.Param{Name: "bias", Shape: alloc.Shape{l.Out}, Split: l.Split == ByColumns})
	}
	if d.Adapts() {
		l.declareAdapters(d)
	}
}

func (l Linear) declareAdapters(d *tape.Declaration) {
	a, b := adapters(d.Cfg.Lora, l)
	d.Layer("lora_A", a)
	d.Layer("lora_B", b)
}

func (l Linear) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Width(x, -1, l.In, "features")
	if x.DType == alloc.Int64 || x.DType == alloc.Int32 || x.DType == alloc.Bool {
		t.Failf("input %v is of %v, which is not multiplied: an Embedding reads Tokens", x.Shape, x.DType)
	}
	Ran.Of(t).Multiplies = true
	in := x
	x = t.Lower(x)
	if in.Irregular() { // matmul folds the rows into one dimension
		x = t.Copy(x)
	}
	shape := t.Resized(x.Shape, l.Out)
	o := tape.Op{
		Shape: shape, DType: t.Computes(), Params: true,
		Split: l.Split == ByColumns && t.Cfg.Sharding.Tensor > 1, Gather: l.Split == ByRows,
		FLOPs: setting.Flops(shape, l.In, 2), As: tape.AddMM,
	}
	switch l.Split {
	case ByColumns:
		x = tape.EntersSplit(t, &o, x)
	case ByRows:
		tape.LeavesSplit(t, &o, o.DType)
	}
	o.In = []tape.Tensor{x}
	o.Keep = t.ForWeights(o.In)
	if l.NoBias {
		o.As = tape.MM
	}
	at, returns := t.DeclaredPath(), o.DType
	if q := t.Cfg.Quantized; q.Holds(at) {
		returns = quantizedReturns(t, in, o.DType)
		quantizedProduct(t, &o, alloc.Shape{l.Out, l.In})
	} else {
		t.Cast(&o, l.Out, l.In)
	}
	y := t.Op(o)
	y = t.In(returns, y)
	lora := t.Cfg.Lora
	if lora == nil {
		return y
	}
	if t.Decl.Adapted(at) {
		return addAdapters(lora, t, l, in, y)
	}
	return y
}

// NoOutput is a Linear that has the name of an output head, and is none for transformers, such as one for letters.
type NoOutput struct{ Linear }

// Kind returns "Linear".
func (NoOutput) Kind() string { return "Linear" }

func (l NoOutput) Declare(d *tape.Declaration) {
	d.Output(false)
	l.Linear.Declare(d)
}

// Output is the Linear that makes the logits of a model of texts (transformers' get_output_embeddings).
type Output struct{ Linear }

// Kind returns "Linear".
func (Output) Kind() string { return "Linear" }

func (l Output) Declare(d *tape.Declaration) {
	d.Output(true)
	l.Linear.Declare(d)
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

type Embedding nn.Embedding

func (l Embedding) Declare(d *tape.Declaration) {
	d.Want("Num", l.Num, 1)
	d.Want("Dim", l.Dim, 1)
	d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split})
}

func (l Embedding) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if x.DType != alloc.Int64 && x.DType != alloc.Int32 {
		t.Failf("input is of %v: want int64 or int32, such as Tokens gives", x.DType)
	}
	reads := []tape.Tensor{x}
	o := tape.Op{
		In: reads, Shape: append(slices.Clone(x.Shape), l.Dim), DType: t.Activation(),
		Params: true, Keep: t.ForWeights(reads),
	}
	if l.Split {
		tape.LeavesSplit(t, &o, o.DType)
	}
	return t.Op(o)
}

// Learned adds a learned tensor to its input, broadcast over the batch, as
// position embeddings are added.
type Learned struct {
	Name  string
	Shape alloc.Shape // such as (1, 197, 768)
}

func (l Learned) Declare(d *tape.Declaration) { d.Param(setting.Or(l.Name, "weight"), l.Shape...) }

func (l Learned) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	l.fits(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Params: true, PassGrad: true})
}

// fits fails unless the parameter can be broadcast to x.
func (l Learned) fits(t *tape.Tape, x tape.Tensor) {
	if len(l.Shape) > len(x.Shape) {
		t.Failf("input %v has fewer dimensions than the parameter, %v", x.Shape, l.Shape)
	}
	for i, n := range l.Shape {
		if have := x.Shape[len(x.Shape)-len(l.Shape)+i]; n != 1 && n != have {
			t.Failf("input %v does not go with the parameter, %v", x.Shape, l.Shape)
		}
	}
}

// Scaled multiplies its input by a learned tensor, broadcast over the batch, as layer scale does
// (arXiv:2103.17239). It keeps its input.
type Scaled struct {
	Name  string      // of the parameter; empty for "weight"
	Shape alloc.Shape // such as (channels, 1, 1)
}

func (l Scaled) Declare(d *tape.Declaration) { d.Param(setting.Or(l.Name, "weight"), l.Shape...) }

func (l Scaled) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	(Learned{Shape: l.Shape}).fits(t, x)
	// The parameter's gradient is summed from a tensor as large as x.
	reads := []tape.Tensor{x}
	return t.Op(tape.Op{In: reads, Shape: x.Shape, Params: true, Keep: t.ForWeights(reads), BackwardWorkspace: t.Size(x)})
}

// RelativeBias is T5's bias of attention scores: a learned number for each head and each bucket of
// distances between query and key (arXiv:1910.10683, section 2.1). Layers with the same pointer,
// such as all layers of a stack, share the bias. The first of them holds the table, named
// relative_attention_bias, and makes the biases that all of them add.
type RelativeBias struct {
	Buckets int
	Causal  bool   // a mask leaves out later keys
	Name    string // of the table; "" means T5's name
	Once    bool   // all layers share the numbers of the distances
}

// madeBiases holds the biases that the first layer of each stack made.
var madeBiases tape.Slot[map[*RelativeBias]tape.Tensor]

// distancesOnce holds the distances' numbers that all layers share.
var distancesOnce tape.Slot[tape.Tensor]

// declare declares the table, unless another layer has.
func (b *RelativeBias) declare(d *tape.Declaration, heads int) {
	if !d.Shared[b] {
		d.Want("Bias.Buckets", b.Buckets, 1)
		d.Shared[b] = true
		d.Layer(b.name(), b.table(heads))
	}
}

func (b *RelativeBias) name() string { return setting.Or(b.Name, "relative_attention_bias") }

// table returns the embedding of the distances.
func (b *RelativeBias) table(heads int) Embedding { return Embedding{Num: b.Buckets, Dim: heads} }

// add returns the tensor to add to the scores.
func (b *RelativeBias) add(t *tape.Tape, heads, length, keys int) tape.Tensor {
	shape := alloc.Shape{1, heads, length, keys}
	biases, made := (*madeBiases.Of(t))[b]
	if !made {
		biases = b.lookUp(t, shape)
	}
	if !slices.Equal(biases.Shape, shape) {
		t.Failf("Bias was made for scores %v: layers that share it must have the same heads and lengths, not %v", biases.Shape, shape)
	}
	if !b.Causal {
		return biases
	}
	return t.Op(tape.Op{In: []tape.Tensor{biases}, Shape: shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{1, 1, length, keys}, DType: alloc.Bool}}})
}

// lookUp takes the biases from the table of the current layer.
func (b *RelativeBias) lookUp(t *tape.Tape, shape alloc.Shape) tape.Tensor {
	numbers := *distancesOnce.Of(t)
	if !b.Once || !slices.Equal(numbers.Shape, shape[2:]) {
		numbers = t.Const(alloc.Int64, shape[2], shape[3])
		*distancesOnce.Of(t) = numbers
	}
	found := t.Call(b.name(), b.table(shape[1]), numbers)
	biases := t.Op(tape.Op{In: []tape.Tensor{found}, Shape: shape, View: true})
	made := madeBiases.Of(t)
	if *made == nil {
		*made = make(map[*RelativeBias]tape.Tensor)
	}
	(*made)[b] = biases
	return biases
}

// MLP is two linear layers with an activation between them.
type MLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is GELU
	NoBias      bool

	Names *[3]string // of the first layer, the activation and the second layer
}

// GatedNames are the names of the projections. Both is the name of gate and up together, where they
// are Packed.
type GatedNames struct{ Gate, Up, Both, Down string }

var llamaMLP = &GatedNames{"gate_proj", "up_proj", "gate_up_proj", "down_proj"}

var MlpNames = &[3]string{"fc1", "activation_fn", "fc2"}

// GatedMLP is down(act(gate(x)) * up(x)), as in Llama.
type GatedMLP struct {
	Hidden, FFN int
	Activation  Activation // the zero value is SiLU
	Bias        bool
	Packed      bool // one projection for gate and up

	Thinned bool        // most elements of the gate are set to 0
	Names   *GatedNames // nil for Llama's
}

func (l MLP) parts() (up, act, down tape.Layer) {
	return Linear{In: l.Hidden, Out: l.FFN, NoBias: l.NoBias, Split: ByColumns},
		l.Activation.Layer(UseGELU),
		Linear{In: l.FFN, Out: l.Hidden, NoBias: l.NoBias, Split: ByRows}
}

func (l MLP) Declare(d *tape.Declaration) {
	up, act, down := l.parts()
	n := setting.Or(l.Names, MlpNames)
	d.Layer(n[0], up)
	d.Layer(n[1], act)
	d.Layer(n[2], down)
}

func (l MLP) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	up, act, down := l.parts()
	n := setting.Or(l.Names, MlpNames)
	x = t.Call(n[0], up, x)
	x = t.Call(n[1], act, x)
	return t.Call(n[2], down, x)
}

func (l GatedMLP) parts() (up, packed Linear, act tape.Layer, down Linear) {
	in := Linear{In: l.Hidden, Out: l.FFN, NoBias: !l.Bias, Split: ByColumns}
	both := in
	both.Out *= 2
	return in, both, l.Activation.Layer(UseSiLU), Linear{In: l.FFN, Out: l.Hidden, NoBias: !l.Bias, Split: ByRows}
}

func (l GatedMLP) Declare(d *tape.Declaration) {
	d.Want("FFN", l.FFN, 1)
	up, packed, act, down := l.parts()
	names := setting.Or(l.Names, llamaMLP)
	if l.Packed {
		d.Layer(names.Both, packed)
		d.Layer("activation_fn", act)
	} else {
		d.Layer(names.Gate, up)
		d.Layer("act_fn", act)
		d.Layer(names.Up, up)
	}
	d.Layer(names.Down, down)
}

func (l GatedMLP) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	in, packed, act, down := l.parts()
	names := setting.Or(l.Names, llamaMLP)
	var gate, up tape.Tensor
	if l.Packed {
		both := t.Call(names.Both, packed, x)
		parts := t.Parts(both, l.FFN, l.FFN)
		gate = t.Call("activation_fn", act, parts[0])
		up = parts[1]
	} else {
		if gate = t.Call(names.Gate, in, x); l.Thinned {
			gate = thin(t, gate)
		}
		gate = t.Call("act_fn", act, gate)
		up = t.Call(names.Up, in, x)
	}
	gate = t.Mul(gate, up)
	return t.Call(names.Down, down, gate)
}

// thin keeps only what is above a bound, relu(x - bound). The bound is computed from the mean and
// deviation of each vector.
func thin(t *tape.Tape, x tape.Tensor) tape.Tensor {
	one := t.Resized(x.Shape, 1)
	bound := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: one, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: one}}, BackwardWorkspace: t.Size(x)})
	y := t.Op(tape.Op{In: []tape.Tensor{x, bound}, Shape: x.Shape, PassGrad: true})
	return KeepOutput(t, y)
}

// SqueezeExcite is torchvision's SqueezeExcitation: it multiplies each channel by a number computed
// from the means of all channels (arXiv:1709.01507).
type SqueezeExcite struct {
	Channels, Middle int
	Activation       tape.Layer // nil means ReLU
	Gate             tape.Layer // nil means Sigmoid
}

func (l SqueezeExcite) parts() tape.Sequential {
	if l.Activation == nil {
		l.Activation = ReLU{}
	}
	if l.Gate == nil {
		l.Gate = Sigmoid{}
	}
	return tape.Sequential{
		tape.As("avgpool", AdaptiveAvgPool(1)),
		tape.As("fc1", Conv2d{In: l.Channels, Out: l.Middle, Kernel: 1}),
		tape.As("activation", l.Activation),
		tape.As("fc2", Conv2d{In: l.Middle, Out: l.Channels, Kernel: 1}),
		tape.As("scale_activation", l.Gate),
	}
}

func (l SqueezeExcite) Declare(d *tape.Declaration) { l.parts().Declare(d) }

func (l SqueezeExcite) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	scale := l.parts().Forward(t, x)
	return t.Mul(x, scale)
}
