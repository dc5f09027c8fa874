package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// attend is scaled_dot_product_attention over (batch, length, heads x size), whose
// values may have another size. It keeps masks that others read too, and one of its own.
func attend(t *Tape, q, k, v Tensor, heads, size int, plain bool, dropout float64, masks []Tensor, mask []Own) (Tensor, error) {
	plain = plain || t.cfg.kernel == EagerAttention
	for _, x := range []*Tensor{&q, &k, &v} {
		low, err := t.lower(*x)
		if err != nil {
			return Tensor{}, err
		}
		*x = low
	}
	batch, length := q.Shape[0], q.Shape[1]
	seen := t.seen(k.Shape[1])
	scores := alloc.Shape{batch, heads, length, seen}
	work := FLOPs(batch, heads, length, seen, size, 4)
	out := t.resized(q.Shape, heads*(v.Shape[2]/max(1, k.Shape[2]/size)))
	trained := len(masks) > 0 && masks[0].grad // which flash attention does not do
	if !plain && (dropout == 0 && !trained || t.On() == CUDA) {
		return t.Op(Op{
			In: append([]Tensor{q, k, v}, masks...), Shape: out, Keep: append([]Tensor{q, k, v}, masks...), KeepOutput: true,
			KeepOwn: append(mask, Own{Shape: scores[:3], DType: alloc.Float32}), FLOPs: work,
		})
	}
	// PyTorch's own plain form computes in float32 (aten/src/ATen/native/transformers/attention.cpp,
	// _scaled_dot_product_attention_math).
	low := q.DType
	for _, x := range []*Tensor{&q, &k, &v} {
		if !plain && x.DType.Bits() < 32 {
			wider, err := t.Op(Op{In: []Tensor{*x}, Shape: x.Shape, DType: alloc.Float32})
			if err != nil {
				return Tensor{}, err
			}
			*x = wider
		}
	}
	var err error
	wide := k.Shape.Clone()
	wide[1], wide[2] = seen, q.Shape[2] // keys and values are repeated for each query head of their group
	if q, err = t.Op(Op{In: []Tensor{q}, Shape: q.Shape}); err != nil {
		return Tensor{}, err
	}
	if k, err = t.Op(Op{In: []Tensor{k}, Shape: wide}); err != nil {
		return Tensor{}, err
	}
	s, err := t.Op(Op{In: []Tensor{q, k}, Shape: scores, Keep: []Tensor{q, k}, FLOPs: work / 2})
	if err != nil {
		return Tensor{}, err
	}
	if len(masks) > 0 {
		if s, err = t.Op(Op{In: append([]Tensor{s}, masks...), Shape: s.Shape, InPlace: true, PassGrad: true}); err != nil {
			return Tensor{}, err
		}
	}
	if s, err = keepSoftmax(t, s); err != nil {
		return Tensor{}, err
	}
	if dropout > 0 {
		if s, err = (Dropout{P: dropout}).Forward(t, s); err != nil {
			return Tensor{}, err
		}
	}
	if s, err = t.lower(s); err != nil {
		return Tensor{}, err
	}
	// Made contiguous, which of a single sequence they are.
	alone := batch == 1 && v.Shape.Equal(wide)
	values := t.resized(out, seen, out[2])
	if v, err = t.Op(Op{In: []Tensor{v}, Shape: values, View: alone}); err != nil {
		return Tensor{}, err
	}
	y, err := t.Op(Op{In: []Tensor{s, v}, Shape: out, Keep: []Tensor{s, v}, FLOPs: work / 2})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape, DType: low}) // heads and length change places again
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
	return attend(t, q, k, v, l.Heads, l.size(), l.Plain, l.Dropout, shared, mask)
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
	batch, length := q.Shape[0], q.Shape[1]
	seen := t.seen(k.Shape[1])
	scores := alloc.Shape{batch, heads, length, seen}
	work := FLOPs(batch, heads, length, seen, size, 2)
	for _, x := range []*Tensor{&q, &k, &v} {
		y, err := t.Op(Op{In: []Tensor{*x}, Shape: t.resized(q.Shape, x.Shape[1], q.Shape[2])})
		if err != nil {
			return Tensor{}, err
		}
		*x = y
	}
	if err := t.mask(1, batch, length, seen); err != nil {
		return Tensor{}, err
	}
	s, err := t.Op(Op{In: []Tensor{q, k}, Shape: scores, Keep: []Tensor{q, k}, FLOPs: work})
	if err == nil {
		s, err = t.Op(Op{In: []Tensor{s, t.masks}, Shape: scores, PassGrad: true})
	}
	if err != nil {
		return Tensor{}, err
	}
	for _, o := range softmax(t, q, scores) {
		o.In, o.Shape = []Tensor{s}, scores
		if s, err = t.Op(o); err != nil {
			return Tensor{}, err
		}
	}
	if dropout > 0 {
		if s, err = (Dropout{P: dropout}).Forward(t, s); err != nil {
			return Tensor{}, err
		}
	}
	y, err := t.Op(Op{In: []Tensor{s, v}, Shape: q.Shape, Keep: []Tensor{s, v}, FLOPs: work})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape})
}

// seen is the number of keys that so many new ones and those in the cache make.
func (t *Tape) seen(keys int) int {
	if t.cfg.cache == nil || t.uncached {
		return keys
	}
	return max(keys, t.cfg.cache.Context)
}

// view is a part of x along its last dimension, in the same storage.
func view(t *Tape, x Tensor, width int) (Tensor, error) {
	return t.Op(Op{In: []Tensor{x}, Shape: t.resized(x.Shape, width), View: true})
}
