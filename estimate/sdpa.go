package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// sdpa is scaled_dot_product_attention over (batch, length, heads x size), whose values may have
// another size.
type sdpa struct {
	heads, size int
	plain       bool // the scores are held
	dropout     float64
	masks       []Tensor // which others read too
	own         []Own    // a mask that it makes
}

func (l sdpa) attend(t *Tape, q, k, v Tensor) (Tensor, error) {
	f := &Flow{t: t}
	q = f.lower(q)
	k = f.lower(k)
	v = f.lower(v)
	scores := alloc.Shape{q.Dim(0), l.heads, q.Dim(1), t.seen(k.Dim(1))}
	out := t.resized(q.Shape, l.heads*(v.Dim(2)/max(1, k.Dim(2)/l.size)))
	trained := len(l.masks) > 0 && l.masks[0].grad // which flash attention does not do
	if l.plain = l.plain || t.cfg.kernel == EagerAttention; l.plain || (l.dropout > 0 || trained) && t.On() == CPU {
		y := l.math(f, q, k, v, scores, out)
		return y, f.err
	}
	kept := append([]Tensor{q, k, v}, l.masks...)
	y := f.Op(Op{
		In: kept, Shape: out, Keep: kept, KeepOutput: true,
		KeepOwn: append(l.own, Own{Shape: scores[:3], DType: alloc.Float32}), FLOPs: flops(scores, l.size, 4),
	})
	return y, f.err
}

// math is PyTorch's form without a kernel of its own, which computes in float32
// (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math). What holds
// its scores otherwise is the same in the type of activations.
func (l sdpa) math(f *Flow, q, k, v Tensor, scores, out alloc.Shape) Tensor {
	low := q.DType
	if !l.plain {
		q = f.widen(q)
		k = f.widen(k)
		v = f.widen(v)
	}
	repeated := alloc.Shape{k.Dim(0), scores[3], q.Dim(2)} // for each query head of their group
	q = f.Scale(q)
	k = f.Op(Op{In: []Tensor{k}, Shape: repeated})
	s := f.Op(Op{In: []Tensor{q, k}, Shape: scores, Keep: []Tensor{q, k}, FLOPs: flops(scores, l.size, 2)})
	if len(l.masks) > 0 {
		s = f.Op(Op{In: append([]Tensor{s}, l.masks...), Shape: scores, InPlace: true, PassGrad: true})
	}
	s = f.do(scores, func() (Tensor, error) { return keepSoftmax(f.t, s) })
	if l.dropout > 0 {
		s = f.Apply(Dropout{P: l.dropout}, s)
	}
	s = f.lower(s)
	// Values are made contiguous, which of a single sequence they are.
	contiguous := scores[0] == 1 && v.Shape.Equal(repeated)
	v = f.Op(Op{In: []Tensor{v}, Shape: f.t.resized(out, scores[3], out[2]), View: contiguous})
	y := f.Op(Op{In: []Tensor{s, v}, Shape: out, Keep: []Tensor{s, v}, FLOPs: flops(scores, l.size, 2)})
	return f.Op(Op{In: []Tensor{y}, Shape: out, DType: low}) // heads and length change places again
}

// kernel is attention by scaled_dot_product_attention. Where a mask is given, and before PyTorch 2.5,
// keys and values are repeated for each query head of their group; the mask is turned into numbers that
// are kept (transformers, integrations/sdpa_attention.py).
func (l Attention) kernel(t *Tape, q, k, v Tensor) (Tensor, error) {
	batch, length := q.Shape[0], q.Shape[1]
	var shared []Tensor
	var mask []Own
	var err error
	switch seen := t.seen(k.Shape[1]); {
	case l.biased:
		if err := t.mask(1, batch*l.Heads, length, seen); err != nil {
			return Tensor{}, err
		}
		shared = []Tensor{t.masks}
	case l.zeros:
		zeros, err := t.Const(t.Activation(), 1, l.Heads, length, seen)
		if err != nil {
			return Tensor{}, err
		}
		shared = []Tensor{zeros}
	case l.Bias != nil:
		biases, err := l.Bias.add(t, l.Heads, length, seen)
		if err != nil {
			return Tensor{}, err
		}
		shared = []Tensor{biases}
	case t.cfg.kernel == FlashAttention: // windows and lengths of sequences are its arguments
	case l.masked:
		mask = []Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
	case l.window > 0 && seen > l.window:
		mask = []Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
		k, v, err = l.repeated(t, q, k, v)
	case t.cfg.release.before(2, 5):
		k, v, err = l.repeated(t, q, k, v)
	}
	if err != nil {
		return Tensor{}, err
	}
	return sdpa{l.Heads, l.size(), l.Plain, l.Dropout, shared, mask}.attend(t, q, k, v)
}

// repeated are keys and values copied for each query head of their group.
func (l Attention) repeated(t *Tape, q, k, v Tensor) (Tensor, Tensor, error) {
	if l.Plain || k.Shape.Equal(q.Shape) {
		return k, v, nil
	}
	k, err := t.Op(Op{In: []Tensor{k}, Shape: t.resized(q.Shape, k.Shape[1], q.Shape[2])})
	if err == nil {
		v, err = t.Op(Op{In: []Tensor{v}, Shape: k.Shape})
	}
	return k, v, err
}

// batched is attention as Bloom writes it: the scores are added to the positions' biases, and
// queries, keys and values are copied.
func batched(t *Tape, q, k, v Tensor, heads, size int, dropout float64) (Tensor, error) {
	f := &Flow{t: t}
	scores := alloc.Shape{q.Dim(0), heads, q.Dim(1), t.seen(k.Dim(1))}
	for _, x := range []*Tensor{&q, &k, &v} {
		*x = f.Op(Op{In: []Tensor{*x}, Shape: t.resized(q.Shape, x.Dim(1), q.Dim(2))})
	}
	if f.err == nil {
		f.err = t.mask(1, scores[0], scores[2], scores[3])
	}
	s := f.Op(Op{In: []Tensor{q, k}, Shape: scores, Keep: []Tensor{q, k}, FLOPs: flops(scores, size, 2)})
	s = softmax(f, f.Op(Op{In: []Tensor{s, t.masks}, Shape: scores, PassGrad: true}), q.DType)
	if dropout > 0 {
		s = f.Apply(Dropout{P: dropout}, s)
	}
	y := f.Op(Op{In: []Tensor{s, v}, Shape: q.Shape, Keep: []Tensor{s, v}, FLOPs: flops(scores, size, 2)})
	y = f.Copy(y)
	return y, f.err
}

// seen is the number of keys that so many new ones and those in the cache make.
func (t *Tape) seen(keys int) int {
	if t.cfg.cache == nil || t.uncached {
		return keys
	}
	return max(keys, t.cfg.cache.Context)
}
