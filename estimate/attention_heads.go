package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

func (l Attention) project(t *Tape, x Tensor) (q, k, v Tensor, err error) {
	n := or(l.names, llamaAttention)
	wide, narrow, packed, _ := l.part()
	if l.Packed {
		all, err := t.Call(n.packed, packed, x)
		if err != nil {
			return q, k, v, err
		}
		split, kv := t.parts, or(l.KVHeads, l.Heads)*l.size()
		if l.sliced {
			split = t.slices
		}
		parts, err := split(all, l.Heads*l.size(), kv, kv)
		if err != nil {
			return q, k, v, err
		}
		return parts[0], parts[1], parts[2], nil
	}
	kv := or(l.KVHeads, l.Heads)
	if q, err = t.Call(n.q, wide, x); err == nil && l.gated {
		if t.gate, err = t.Op(Op{In: []Tensor{q}, Shape: t.resized(q.Shape, q.Shape[2]/2)}); err == nil {
			q, err = view(t, q, q.Shape[2]/2)
		}
	}
	if err == nil && !l.normsLate() {
		q, err = l.normalise(t, or(n.qNorm, "q_norm"), q, l.Heads)
	}
	if l.borrowed {
		lent := t.lent[l.kind()]
		if err == nil && lent[0].Shape == nil {
			err = t.Errorf("it takes keys and values of an earlier layer, but there is none of its kind")
		}
		return q, lent[0], lent[1], err
	}
	source := x
	if err == nil && l.Cross {
		source, err = l.source(t)
	}
	if err == nil {
		k, err = t.Call(n.k, l.keys(narrow), source)
	}
	if err == nil && !l.normsLate() {
		k, err = l.normalise(t, or(n.kNorm, "k_norm"), k, kv)
	}
	if err == nil {
		v, err = t.Call(n.v, narrow, source)
	}
	if err == nil && l.valueNorm {
		heads := RMSNorm{Size: l.size(), Unfused: true, Late: true, powered: true, unscaled: true}
		if v, err = seen(t, v, []int{v.Shape[0], v.Shape[1], kv, l.size()}); err == nil {
			v, err = heads.Forward(t, v)
		}
		if err == nil {
			v, err = seen(t, v, k.Shape)
		}
	}
	if err == nil && l.shifted { // Gemma projects first
		q, k, err = l.norms(t, q, k)
	}
	if err != nil || !l.clipped {
		return q, k, v, err
	}
	for _, x := range []*Tensor{&q, &k, &v} {
		if *x, err = keepInput(t, *x, true); err != nil {
			return q, k, v, err
		}
	}
	return q, k, v, err
}

// kind is 1 for a layer with a window and 0 for one without.
func (l Attention) kind() int { return min(l.window, 1) }

// normsLate reports whether queries and keys are normed when all is projected.
func (l Attention) normsLate() bool { return l.shifted || l.normLast }

// norms norms queries and keys.
func (l Attention) norms(t *Tape, q, k Tensor) (Tensor, Tensor, error) {
	n := or(l.names, llamaAttention)
	q, err := l.normalise(t, or(n.qNorm, "q_norm"), q, l.Heads)
	if err == nil {
		k, err = l.normalise(t, or(n.kNorm, "k_norm"), k, or(l.KVHeads, l.Heads))
	}
	return q, k, err
}

// weighedByPlace multiplies each query by a number for its place, which is kept.
func weighedByPlace(t *Tape, q Tensor) (Tensor, error) {
	return t.Op(Op{In: []Tensor{q}, Shape: q.Shape, KeepOwn: []Own{{alloc.Shape{q.Shape[1]}, q.DType}}})
}

// source is what keys and values of Cross attention are made of.
func (l Attention) source(t *Tape) (Tensor, error) {
	t.unmeasured |= encodersAndDecoders
	x, err := t.Beside(0)
	if err == nil {
		err = t.rank(x, 3, "(batch, length, hidden)")
	}
	return x, err
}

// weigh multiplies the output by the sigmoid of its gates.
func (l Attention) weigh(t *Tape, y Tensor) (Tensor, error) {
	gate, err := keepOutput(t, t.gate)
	if err != nil {
		return Tensor{}, err
	}
	return mul(t, y, gate)
}

// turned rotates heads as complex numbers, and divides them by their lengths.
func (l Attention) turned(t *Tape, x Tensor, heads int) (Tensor, error) {
	x, err := rotateComplex(t, x, heads, l.size())
	if err != nil || !l.unit {
		return x, err
	}
	return unitHeads(t, x, heads, l.size())
}

// keys is the projection of keys.
func (l Attention) keys(narrow Linear) Linear {
	narrow.NoBias = narrow.NoBias || l.noKeyBias
	return narrow
}

// copies makes queries, keys and values contiguous, heads before the length.
func (l Attention) copies(t *Tape, q, k, v Tensor) (Tensor, Tensor, Tensor, error) {
	for _, x := range []*Tensor{&q, &k, &v} {
		shape := x.Shape
		if l.spread {
			shape = q.Shape
		}
		y, err := t.Op(Op{In: []Tensor{*x}, Shape: shape})
		if err != nil {
			return q, k, v, err
		}
		*x = y
	}
	return q, k, v, nil
}

// qkNorm is the norm of so many heads.
func (l Attention) qkNorm(heads int) Layer {
	size := l.size()
	if l.headNorm != nil {
		return l.headNorm(heads, size)
	}
	if l.QKNorm == NormAllHeads {
		size *= min(heads, maxField)
	}
	return RMSNorm{Size: size, Unfused: true, Shifted: l.shifted, Late: l.lateNorm}
}

// normalise calls a norm, if there are any, with queries or keys as it sees them.
func (l Attention) normalise(t *Tape, name string, x Tensor, heads int) (Tensor, error) {
	if l.QKNorm == NoQKNorm {
		return x, nil
	}
	flat, err := x.Shape, error(nil)
	if l.QKNorm == NormHeads {
		seen := alloc.Shape{flat[0], flat[1], heads, l.size()}
		if _, before := l.qkNorm(heads).(eachHead); l.shifted || before {
			seen = alloc.Shape{flat[0], heads, flat[1], l.size()}
		}
		x, err = t.Op(Op{In: []Tensor{x}, Shape: seen, View: true})
	}
	if err == nil {
		x, err = t.Call(name, l.qkNorm(heads), x)
	}
	if err != nil || l.QKNorm != NormHeads {
		return x, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: flat, View: true})
}
