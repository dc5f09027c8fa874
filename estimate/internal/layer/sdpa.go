package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Sdpa is scaled_dot_product_attention over (batch, length, heads x size), whose values may have
// another size.
type Sdpa struct {
	Heads, Size int
	plain       bool // the scores are held in memory
	dropout     float64
	masks       []tape.Tensor // masks that others read too
	own         []tape.Own    // a mask that the operation makes
}

func (l Sdpa) Attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	q = t.Lower(q)
	k = t.Lower(k)
	v = t.Lower(v)
	scores := alloc.Shape{q.Dim(0), l.Heads, q.Dim(1), Seen(t, k.Dim(1))}
	out := t.Resized(q.Shape, l.Heads*(v.Dim(2)/max(1, k.Dim(2)/l.Size)))
	trained := len(l.masks) > 0 && l.masks[0].NeedsGrad() // flash attention cannot train a mask
	if l.plain = l.plain || t.Cfg.Kernel == setting.EagerAttention; l.plain || (l.dropout > 0 || trained) && t.On() == setting.CPU {
		return l.math(t, q, k, v, scores, out)
	}
	kept := append([]tape.Tensor{q, k, v}, l.masks...)
	return t.Op(tape.Op{
		In: kept, Shape: out, Keep: kept, KeepOutput: true,
		KeepOwn: append(l.own, tape.Own{Shape: scores[:3], DType: alloc.Float32}), FLOPs: setting.Flops(scores, l.Size, 4),
		As: tape.Attention,
	})
}

// math is PyTorch's form without a kernel of its own, which computes in float32
// (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math). Other
// attention that holds its scores does the same in the type of activations.
func (l Sdpa) math(t *tape.Tape, q, k, v tape.Tensor, scores, out alloc.Shape) tape.Tensor {
	low := q.DType
	if !l.plain {
		q = t.Widen(q)
		k = t.Widen(k)
		v = t.Widen(v)
	}
	repeated := alloc.Shape{k.Dim(0), scores[3], q.Dim(2)} // for each query head of the group
	q = t.Scale(q)
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: repeated})
	s := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, l.Size, 2)})
	if len(l.masks) > 0 {
		s = t.Op(tape.Op{In: append([]tape.Tensor{s}, l.masks...), Shape: scores, InPlace: true, PassGrad: true})
	}
	s = keepSoftmax(t, s)
	if l.dropout > 0 {
		s = t.Apply(Dropout{P: l.dropout}, s)
	}
	s = t.Lower(s)
	// Values are made contiguous, unless they are already, as for a single sequence.
	contiguous := scores[0] == 1 && slices.Equal(v.Shape, repeated)
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: t.Resized(out, scores[3], out[2]), View: contiguous})
	y := t.Op(tape.Op{In: []tape.Tensor{s, v}, Shape: out, Keep: []tape.Tensor{s, v}, FLOPs: setting.Flops(scores, l.Size, 2)})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: out, DType: low}) // heads and length are swapped back
}

// Uncached says that attention does not read keys and values of earlier tokens, as in an encoder.
var Uncached tape.Slot[bool]

// Seen returns the number of keys that attention reads: the new ones and those in the cache.
func Seen(t *tape.Tape, keys int) int {
	if t.Cfg.Cache == nil || *Uncached.Of(t) {
		return keys
	}
	return max(keys, t.Cfg.Cache.ContextLength)
}

// kernel records attention by scaled_dot_product_attention. With a mask, and before PyTorch 2.5,
// keys and values are repeated for each query head of their group; a mask is converted to numbers,
// which are kept (transformers, integrations/sdpa_attention.py).
func (l Attention) kernel(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	batch, length := q.Shape[0], q.Shape[1]
	var shared []tape.Tensor
	var mask []tape.Own
	switch seen := Seen(t, k.Shape[1]); {
	case l.Biased:
		makeMask(t, 1, batch*l.Heads, length, seen)
		shared = []tape.Tensor{masks.Of(t).of}
	case l.Zeros:
		zeros := t.Const(t.Activation(), 1, l.Heads, length, seen)
		shared = []tape.Tensor{zeros}
	case l.Bias != nil:
		biases := l.Bias.add(t, l.Heads, length, seen)
		shared = []tape.Tensor{biases}
	case t.Cfg.Kernel == setting.FlashAttention: // it takes windows and lengths of sequences as arguments
	case l.Masked:
		mask = []tape.Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
	case l.Window > 0 && seen > l.Window:
		mask = []tape.Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
		k, v = l.repeated(t, q, k, v)
	case t.Cfg.Release.Before(2, 5):
		k, v = l.repeated(t, q, k, v)
	}
	return Sdpa{l.Heads, l.Size(), l.Plain, l.Dropout, shared, mask}.Attend(t, q, k, v)
}

// repeated returns keys and values repeated for each query head of their group. A single head is
// broadcast, not copied.
func (l Attention) repeated(t *tape.Tape, q, k, v tape.Tensor) (tape.Tensor, tape.Tensor) {
	if l.Plain || slices.Equal(k.Shape, q.Shape) || setting.Or(l.KVHeads, l.Heads) == 1 {
		return k, v
	}
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: t.Resized(q.Shape, k.Shape[1], q.Shape[2])})
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: k.Shape})
	return k, v
}

// batched is attention as Bloom writes it: the positions' biases are added to the scores, and
// queries, keys and values are copied.
func batched(t *tape.Tape, q, k, v tape.Tensor, heads, size int, dropout float64) tape.Tensor {
	scores := alloc.Shape{q.Dim(0), heads, q.Dim(1), Seen(t, k.Dim(1))}
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		*x = t.Op(tape.Op{In: []tape.Tensor{*x}, Shape: t.Resized(q.Shape, x.Dim(1), q.Dim(2))})
	}
	makeMask(t, 1, scores[0], scores[2], scores[3])
	s := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, size, 2)})
	s = softmax(t, t.Op(tape.Op{In: []tape.Tensor{s, masks.Of(t).of}, Shape: scores, PassGrad: true}), q.DType)
	if dropout > 0 {
		s = t.Apply(Dropout{P: dropout}, s)
	}
	y := t.Op(tape.Op{In: []tape.Tensor{s, v}, Shape: q.Shape, Keep: []tape.Tensor{s, v}, FLOPs: setting.Flops(scores, size, 2)})
	return t.Copy(y)
}

// ScaledDotProduct is scaled_dot_product_attention of (batch, length, heads x size) tensors.
func ScaledDotProduct(t *tape.Tape, q, k, v tape.Tensor, heads, size int) tape.Tensor {
	if len(q.Shape) != 3 || len(k.Shape) != 3 || len(v.Shape) != 3 || heads < 1 || size < 1 {
		t.Failf("attention of %v, %v and %v with %d heads of %d: want (batch, length, heads x size)", q.Shape, k.Shape, v.Shape, heads, size)
	}
	return Sdpa{Heads: heads, Size: size}.Attend(t, q, k, v)
}
