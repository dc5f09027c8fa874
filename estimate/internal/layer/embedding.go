package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

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
	return t.Op(tape.Op{
		In: reads, Shape: append(slices.Clone(x.Shape), l.Dim), DType: t.Activation(),
		Params: true, Keep: t.ForWeights(reads),
	})
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
