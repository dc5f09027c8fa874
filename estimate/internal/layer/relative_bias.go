package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// RelativeBias are T5's biases of attention's scores: a learned number for each head and each bucket
// of distances between query and key (arXiv:1910.10683, section 2.1). Layers of Attention that have
// the same pointer, as those of a stack do, share them: the first of them holds the table, which is
// named relative_attention_bias, and makes the biases that all add.
type RelativeBias struct {
	Buckets int
	Causal  bool // later keys are left out, by a mask
}

// madeBiases are those that the first layer of a stack made for all of it.
var madeBiases tape.Slot[map[*RelativeBias]tape.Tensor]

// declare declares the table where no other layer has.
func (b *RelativeBias) declare(d *tape.Declaration, heads int) {
	if !d.Shared[b] && d.Want("Bias.Buckets", b.Buckets, 1) {
		d.Shared[b] = true
		d.Layer("relative_attention_bias", b.table(heads))
	}
}

// table is the embedding of the distances.
func (b *RelativeBias) table(heads int) Embedding { return Embedding{Num: b.Buckets, Dim: heads} }

// add returns what is added to the scores of so many queries and keys.
func (b *RelativeBias) add(t *tape.Tape, heads, length, keys int) (tape.Tensor, error) {
	shape := alloc.Shape{1, heads, length, keys}
	biases, made := (*madeBiases.Of(t))[b]
	if !made {
		var err error
		if biases, err = b.lookUp(t, shape); err != nil {
			return tape.Tensor{}, err
		}
	}
	if !biases.Shape.Equal(shape) {
		return tape.Tensor{}, t.Errorf("Bias was made for scores %v: layers that share it must have the same heads and lengths, not %v", biases.Shape, shape)
	}
	if !b.Causal {
		return biases, nil
	}
	return t.Op(tape.Op{In: []tape.Tensor{biases}, Shape: shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{1, 1, length, keys}, DType: alloc.Bool}}})
}

// lookUp finds the biases in the table of the layer that is being called.
func (b *RelativeBias) lookUp(t *tape.Tape, shape alloc.Shape) (tape.Tensor, error) {
	numbers, err := t.Const(alloc.Int64, shape[2], shape[3])
	if err != nil {
		return tape.Tensor{}, err
	}
	found, err := t.Call("relative_attention_bias", b.table(shape[1]), numbers)
	if err != nil {
		return tape.Tensor{}, err
	}
	biases, err := t.Op(tape.Op{In: []tape.Tensor{found}, Shape: shape, View: true})
	made := madeBiases.Of(t)
	if *made == nil {
		*made = make(map[*RelativeBias]tape.Tensor)
	}
	(*made)[b] = biases
	return biases, err
}
