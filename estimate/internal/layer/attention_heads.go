package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// project makes queries, keys and values from x.
func (l Attention) project(t *tape.Tape, x tape.Tensor) (q, k, v tape.Tensor, err error) {
	if l.Packed {
		return l.projectPacked(t, x)
	}
	q, err = l.queries(t, x)
	switch {
	case err != nil:
		return q, k, v, err
	case l.Borrowed:
		k, v, err = l.borrow(t)
		return q, k, v, err
	}
	k, v, err = l.keysAndValues(t, x)
	if err == nil && l.Shifted { // Gemma projects first
		q, k, err = l.norms(t, q, k)
	}
	if err != nil || !l.Clipped {
		return q, k, v, err
	}
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		if *x, err = KeepInput(t, *x, true); err != nil {
			return q, k, v, err
		}
	}
	return q, k, v, nil
}

// projectPacked makes queries, keys and values with one projection.
func (l Attention) projectPacked(t *tape.Tape, x tape.Tensor) (q, k, v tape.Tensor, err error) {
	_, _, packed, _ := l.part()
	all, err := t.Call(setting.Or(l.Names, llamaAttention).Packed, packed, x)
	if err != nil {
		return q, k, v, err
	}
	split, kv := t.Parts, setting.Or(l.KVHeads, l.Heads)*l.Size()
	if l.Sliced {
		split = t.Slices
	}
	parts, err := split(all, l.Heads*l.Size(), kv, kv)
	if err != nil {
		return q, k, v, err
	}
	return parts[0], parts[1], parts[2], nil
}

// queries makes the queries and, if Gated, the gates of the output.
func (l Attention) queries(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	n := setting.Or(l.Names, llamaAttention)
	wide, _, _, _ := l.part()
	q, err := t.Call(n.Q, wide, x)
	if err == nil && l.Gated {
		q, err = l.gates(t, q)
	}
	if err != nil || l.normsLate() {
		return q, err
	}
	return l.normalise(t, setting.Or(n.QNorm, "q_norm"), q, l.Heads)
}

// gates splits the projection into queries and gates, and copies the gates.
func (l Attention) gates(t *tape.Tape, both tape.Tensor) (tape.Tensor, error) {
	half := both.Dim(-1) / 2
	parts, err := t.Parts(both, half, half)
	if err != nil {
		return tape.Tensor{}, err
	}
	*outputGate.Of(t), err = t.Op(tape.Op{In: parts[1:], Shape: parts[1].Shape})
	return parts[0], err
}

// keysAndValues makes keys and values from x or, if Cross, from the tensor beside x.
func (l Attention) keysAndValues(t *tape.Tape, x tape.Tensor) (k, v tape.Tensor, err error) {
	n, kv := setting.Or(l.Names, llamaAttention), setting.Or(l.KVHeads, l.Heads)
	_, narrow, _, _ := l.part()
	if l.Cross {
		if x, err = l.source(t); err != nil {
			return k, v, err
		}
	}
	k, err = t.Call(n.K, l.keys(narrow), x)
	v = k
	if err == nil && !l.normsLate() {
		k, err = l.normalise(t, setting.Or(n.KNorm, "k_norm"), k, kv)
	}
	if err == nil && !l.KeysOnly {
		v, err = t.Call(n.V, narrow, x)
	}
	if err == nil && l.ValueNorm {
		v, err = l.normValues(t, v, kv)
	}
	return k, v, err
}

// normValues norms each head of the values.
func (l Attention) normValues(t *tape.Tape, v tape.Tensor, heads int) (tape.Tensor, error) {
	shape := v.Shape
	v, err := tape.Seen(t, v, []int{shape[0], shape[1], heads, l.Size()})
	if err == nil {
		v, err = RMSNorm{Size: l.Size(), Unfused: true, Late: true, Powered: true, Plain: true}.Forward(t, v)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Seen(t, v, shape)
}

// lent holds the keys and values that later layers may borrow: those of the last layer without a
// window, and those of the last one with a window.
var lent tape.Slot[[2][2]tape.Tensor]

// outputGate is the gate of the current attention's output.
var outputGate tape.Slot[tape.Tensor]

// borrow returns the keys and values of the last layer of the same kind.
func (l Attention) borrow(t *tape.Tape) (k, v tape.Tensor, err error) {
	lent := lent.Of(t)[l.kind()]
	if lent[0].Shape == nil {
		err = t.Errorf("it takes keys and values of an earlier layer, but there is none of its kind")
	}
	return lent[0], lent[1], err
}

// kind is 1 for a layer with a window and 0 for one without.
func (l Attention) kind() int { return min(l.Window, 1) }

// normsLate reports whether queries and keys are normed only after all projections.
func (l Attention) normsLate() bool { return l.Shifted || l.NormLast }

// norms norms queries and keys.
func (l Attention) norms(t *tape.Tape, q, k tape.Tensor) (tape.Tensor, tape.Tensor, error) {
	n := setting.Or(l.Names, llamaAttention)
	q, err := l.normalise(t, setting.Or(n.QNorm, "q_norm"), q, l.Heads)
	if err == nil {
		k, err = l.normalise(t, setting.Or(n.KNorm, "k_norm"), k, setting.Or(l.KVHeads, l.Heads))
	}
	return q, k, err
}

// weighedByPlace multiplies each query by a number for its position, and keeps these numbers.
func weighedByPlace(t *tape.Tape, q tape.Tensor) (tape.Tensor, error) {
	return t.Op(tape.Op{In: []tape.Tensor{q}, Shape: q.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{q.Shape[1]}, DType: q.DType}}})
}

// source returns the tensor from which Cross attention makes keys and values.
func (l Attention) source(t *tape.Tape) (tape.Tensor, error) {
	Ran.Of(t).Unmeasured |= EncodersAndDecoders
	x, err := t.Beside(0)
	if err == nil {
		err = t.Rank(x, 3, "(batch, length, hidden)")
	}
	return x, err
}

// weigh multiplies the output by the sigmoid of its gates.
func (l Attention) weigh(t *tape.Tape, y tape.Tensor) (tape.Tensor, error) {
	gate, err := KeepOutput(t, *outputGate.Of(t))
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Mul(t, y, gate)
}

// turned rotates heads as complex numbers and, if Unit, divides them by their lengths.
func (l Attention) turned(t *tape.Tape, x tape.Tensor, heads int) (tape.Tensor, error) {
	x, err := rotateComplex(t, x, heads, l.Size())
	if err != nil || !l.Unit {
		return x, err
	}
	return unitHeads(t, x, heads, l.Size())
}

// keys returns the projection of keys.
func (l Attention) keys(narrow Linear) Linear {
	narrow.NoBias = narrow.NoBias || l.NoKeyBias
	return narrow
}

// copies makes queries, keys and values contiguous, heads before the length.
func (l Attention) copies(t *tape.Tape, q, k, v tape.Tensor) (tape.Tensor, tape.Tensor, tape.Tensor, error) {
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		shape := x.Shape
		if l.Spread {
			shape = q.Shape
		}
		y, err := t.Op(tape.Op{In: []tape.Tensor{*x}, Shape: shape})
		if err != nil {
			return q, k, v, err
		}
		*x = y
	}
	return q, k, v, nil
}

// qkNorm returns the norm for this number of heads.
func (l Attention) qkNorm(heads int) tape.Layer {
	size := l.Size()
	if l.HeadNorm != nil {
		return l.HeadNorm(heads, size)
	}
	if l.QKNorm == NormAllHeads {
		size *= min(heads, setting.MaxField)
	}
	return RMSNorm{Size: size, Unfused: true, Shifted: l.Shifted, Late: l.LateNorm}
}

// normalise calls the norm of queries or keys, if there is one, in the order of dimensions that it
// needs.
func (l Attention) normalise(t *tape.Tape, name string, x tape.Tensor, heads int) (tape.Tensor, error) {
	if l.QKNorm == NoQKNorm {
		return x, nil
	}
	flat, err := x.Shape, error(nil)
	if l.QKNorm == NormHeads {
		seen := alloc.Shape{flat[0], flat[1], heads, l.Size()}
		if _, before := l.qkNorm(heads).(EachHead); l.Shifted || before {
			seen = alloc.Shape{flat[0], heads, flat[1], l.Size()}
		}
		x, err = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: seen, View: true})
	}
	if err == nil {
		x, err = t.Call(name, l.qkNorm(heads), x)
	}
	if err != nil || l.QKNorm != NormHeads {
		return x, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: flat, View: true})
}

// unitHeads divides each head by its length, in float32.
func unitHeads(t *tape.Tape, x tape.Tensor, heads, size int) (tape.Tensor, error) {
	d := x.DType
	y := x
	var err error
	if d.Bits() < 32 {
		if y, err = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32}); err != nil {
			return tape.Tensor{}, err
		}
	}
	stats := tape.Own{Shape: alloc.Shape{x.Shape[0], x.Shape[1], heads, 1}, DType: alloc.Float32}
	y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{stats}})
	if err != nil || d == y.DType {
		return y, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, DType: d})
}
