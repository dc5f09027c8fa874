package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// project makes queries, keys and values.
func (l Attention) project(t *Tape, x Tensor) (q, k, v Tensor, err error) {
	if l.Packed {
		return l.projectPacked(t, x)
	}
	q, err = l.queries(t, x)
	switch {
	case err != nil:
		return q, k, v, err
	case l.borrowed:
		k, v, err = l.borrow(t)
		return q, k, v, err
	}
	k, v, err = l.keysAndValues(t, x)
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
	return q, k, v, nil
}

// projectPacked makes queries, keys and values by one projection.
func (l Attention) projectPacked(t *Tape, x Tensor) (q, k, v Tensor, err error) {
	_, _, packed, _ := l.part()
	all, err := t.Call(or(l.names, llamaAttention).packed, packed, x)
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

// queries makes the queries, and the gates of the output beside them.
func (l Attention) queries(t *Tape, x Tensor) (Tensor, error) {
	n := or(l.names, llamaAttention)
	wide, _, _, _ := l.part()
	q, err := t.Call(n.q, wide, x)
	if err == nil && l.gated {
		q, err = l.gates(t, q)
	}
	if err != nil || l.normsLate() {
		return q, err
	}
	return l.normalise(t, or(n.qNorm, "q_norm"), q, l.Heads)
}

// gates splits what the projection of queries made into queries and gates, of which a copy is made.
func (l Attention) gates(t *Tape, both Tensor) (Tensor, error) {
	half := both.Dim(-1) / 2
	parts, err := t.parts(both, half, half)
	if err != nil {
		return Tensor{}, err
	}
	t.gate, err = t.Op(Op{In: parts[1:], Shape: parts[1].Shape})
	return parts[0], err
}

// keysAndValues makes them of x, or of what stands beside it.
func (l Attention) keysAndValues(t *Tape, x Tensor) (k, v Tensor, err error) {
	n, kv := or(l.names, llamaAttention), or(l.KVHeads, l.Heads)
	_, narrow, _, _ := l.part()
	if l.Cross {
		if x, err = l.source(t); err != nil {
			return k, v, err
		}
	}
	k, err = t.Call(n.k, l.keys(narrow), x)
	if err == nil && !l.normsLate() {
		k, err = l.normalise(t, or(n.kNorm, "k_norm"), k, kv)
	}
	if err == nil {
		v, err = t.Call(n.v, narrow, x)
	}
	if err == nil && l.valueNorm {
		v, err = l.normValues(t, v, kv)
	}
	return k, v, err
}

// normValues norms each head of the values.
func (l Attention) normValues(t *Tape, v Tensor, heads int) (Tensor, error) {
	shape := v.Shape
	v, err := seen(t, v, []int{shape[0], shape[1], heads, l.size()})
	if err == nil {
		v, err = RMSNorm{Size: l.size(), Unfused: true, Late: true, powered: true, unscaled: true}.Forward(t, v)
	}
	if err != nil {
		return Tensor{}, err
	}
	return seen(t, v, shape)
}

// borrow returns the keys and values of the last layer of the kind.
func (l Attention) borrow(t *Tape) (k, v Tensor, err error) {
	lent := t.lent[l.kind()]
	if lent[0].Shape == nil {
		err = t.Errorf("it takes keys and values of an earlier layer, but there is none of its kind")
	}
	return lent[0], lent[1], err
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
