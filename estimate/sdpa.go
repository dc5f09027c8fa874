package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// attend is scaled_dot_product_attention over (batch, length, heads x size), whose
// values may have another size.
func attend(t *Tape, q, k, v Tensor, heads, size int, plain bool, dropout float64) (Tensor, error) {
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
	if !plain && (dropout == 0 || t.On() == CUDA) {
		return t.Op(Op{
			In: []Tensor{q, k, v}, Shape: out, Keep: []Tensor{q, k, v}, KeepOutput: true,
			KeepOwn: []Own{{Shape: scores[:3], DType: alloc.Float32}}, FLOPs: work,
		})
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
	return t.Op(Op{In: []Tensor{y}, Shape: y.Shape}) // heads and length change places again
}

// seen is the number of keys that so many new ones and those in the cache make.
func (t *Tape) seen(keys int) int {
	if t.cfg.cache == nil {
		return keys
	}
	return max(keys, t.cfg.cache.Context)
}

// view is a part of x along its last dimension, in the same storage.
func view(t *Tape, x Tensor, width int) (Tensor, error) {
	return t.Op(Op{In: []Tensor{x}, Shape: t.resized(x.Shape, width), View: true})
}
