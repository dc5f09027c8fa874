package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// RelativeBias are T5's biases of attention's scores: a learned number for each head and each bucket
// of distances between query and key (arXiv:1910.10683, section 2.1). Layers of Attention that have
// the same pointer, as those of a stack do, share them: the first of them holds the table, which is
// named relative_attention_bias, and makes the biases that all add.
type RelativeBias struct {
	Buckets int
	Causal  bool // later keys are left out, by a mask
}

// declare declares the table where no other layer has.
func (b *RelativeBias) declare(d *Declaration, heads int) {
	if !d.shared[b] && d.want("Bias.Buckets", b.Buckets, 1) {
		d.shared[b] = true
		d.Layer("relative_attention_bias", b.table(heads))
	}
}

// table is the embedding of the distances.
func (b *RelativeBias) table(heads int) Embedding { return Embedding{Num: b.Buckets, Dim: heads} }

// add returns what is added to the scores of so many queries and keys.
func (b *RelativeBias) add(t *Tape, heads, length, keys int) (Tensor, error) {
	shape := alloc.Shape{1, heads, length, keys}
	biases, made := t.biases[b]
	if !made {
		var err error
		if biases, err = b.lookUp(t, shape); err != nil {
			return Tensor{}, err
		}
	}
	if !biases.Shape.Equal(shape) {
		return Tensor{}, t.Errorf("Bias was made for scores %v: layers that share it must have the same heads and lengths, not %v", biases.Shape, shape)
	}
	if !b.Causal {
		return biases, nil
	}
	return t.Op(Op{In: []Tensor{biases}, Shape: shape, KeepOwn: []Own{{alloc.Shape{1, 1, length, keys}, alloc.Bool}}})
}

// lookUp finds the biases in the table of the layer that is being called.
func (b *RelativeBias) lookUp(t *Tape, shape alloc.Shape) (Tensor, error) {
	numbers, err := t.Const(alloc.Int64, shape[2], shape[3])
	if err != nil {
		return Tensor{}, err
	}
	found, err := t.Call("relative_attention_bias", b.table(shape[1]), numbers)
	if err != nil {
		return Tensor{}, err
	}
	biases, err := t.Op(Op{In: []Tensor{found}, Shape: shape, View: true})
	if t.biases == nil {
		t.biases = make(map[*RelativeBias]Tensor)
	}
	t.biases[b] = biases
	return biases, err
}
