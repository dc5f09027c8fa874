package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// project makes queries, keys and values from x.
func (l Attention) project(t *tape.Tape, x tape.Tensor) (q, k, v tape.Tensor) {
	if l.Packed {
		return l.projectPacked(t, x)
	}
	q = l.queries(t, x)
	if l.Borrowed {
		k, v = l.borrow(t)
		return q, k, v
	}
	k, v = l.keysAndValues(t, x)
	if l.Shifted { // Gemma projects first
		q, k = l.norms(t, q, k)
	}
	if !l.Clipped {
		return q, k, v
	}
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		*x = KeepInput(t, *x, true)
	}
	return q, k, v
}

// projectPacked makes queries, keys and values with one projection.
func (l Attention) projectPacked(t *tape.Tape, x tape.Tensor) (q, k, v tape.Tensor) {
	_, _, packed, _ := l.part()
	all := t.Call(setting.Or(l.Names, llamaAttention).Packed, packed, x)
	split, kv := t.Parts, setting.Or(l.KVHeads, l.Heads)*l.Size()
	if l.Sliced {
		split = t.Slices
	}
	parts := split(all, l.Heads*l.Size(), kv, kv)
	return parts[0], parts[1], parts[2]
}

// queries makes the queries and, if Gated, the gates of the output.
func (l Attention) queries(t *tape.Tape, x tape.Tensor) tape.Tensor {
	n := setting.Or(l.Names, llamaAttention)
	wide, _, _, _ := l.part()
	q := t.Call(n.Q, wide, x)
	if l.Gated {
		q = l.gates(t, q)
	}
	if l.normsLate() {
		return q
	}
	return l.normalise(t, setting.Or(n.QNorm, "q_norm"), q, l.Heads)
}

// gates splits the projection into queries and gates, and copies the gates.
func (l Attention) gates(t *tape.Tape, both tape.Tensor) tape.Tensor {
	half := both.Dim(-1) / 2
	parts := t.Parts(both, half, half)
	*outputGate.Of(t) = t.Op(tape.Op{In: parts[1:], Shape: parts[1].Shape})
	return parts[0]
}

// keysAndValues makes keys and values from x or, if Cross, from the tensor beside x.
func (l Attention) keysAndValues(t *tape.Tape, x tape.Tensor) (k, v tape.Tensor) {
	n, kv := setting.Or(l.Names, llamaAttention), setting.Or(l.KVHeads, l.Heads)
	_, narrow, _, _ := l.part()
	if l.Cross {
		x = l.source(t)
	}
	k = t.Call(n.K, l.keys(narrow), x)
	v = k
	if !l.normsLate() {
		k = l.normalise(t, setting.Or(n.KNorm, "k_norm"), k, kv)
	}
	if !l.KeysOnly {
		v = t.Call(n.V, narrow, x)
	}
	if l.ValueNorm {
		v = l.normValues(t, v, kv)
	}
	return k, v
}

// normValues norms each head of the values.
func (l Attention) normValues(t *tape.Tape, v tape.Tensor, heads int) tape.Tensor {
	shape := v.Shape
	v = t.View(v, []int{shape[0], shape[1], heads, l.Size()}...)
	v = RMSNorm{Size: l.Size(), Unfused: true, Late: true, Powered: true, Plain: true}.Forward(t, v)
	return t.View(v, shape...)
}

// lent holds the keys and values that later layers may borrow: those of the last layer without a
// window, and those of the last one with a window.
var lent tape.Slot[[2][2]tape.Tensor]

// outputGate is the gate of the current attention's output.
var outputGate tape.Slot[tape.Tensor]

// borrow returns the keys and values of the last layer of the same kind.
func (l Attention) borrow(t *tape.Tape) (k, v tape.Tensor) {
	lent := lent.Of(t)[l.kind()]
	if lent[0].Shape == nil {
		t.Failf("it takes keys and values of an earlier layer, but there is none of its kind")
	}
	return lent[0], lent[1]
}

// kind is 1 for a layer with a window and 0 for one without.
func (l Attention) kind() int { return min(l.Window, 1) }

// normsLate reports whether queries and keys are normed only after all projections.
func (l Attention) normsLate() bool { return l.Shifted || l.NormLast }

// norms norms queries and keys.
func (l Attention) norms(t *tape.Tape, q, k tape.Tensor) (tape.Tensor, tape.Tensor) {
	n := setting.Or(l.Names, llamaAttention)
	q = l.normalise(t, setting.Or(n.QNorm, "q_norm"), q, l.Heads)
	k = l.normalise(t, setting.Or(n.KNorm, "k_norm"), k, setting.Or(l.KVHeads, l.Heads))
	return q, k
}

// weighedByPlace multiplies each query by a number for its position, and keeps these numbers.
func weighedByPlace(t *tape.Tape, q tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{q}, Shape: q.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{q.Shape[1]}, DType: q.DType}}})
}

// source returns the tensor from which Cross attention makes keys and values.
func (l Attention) source(t *tape.Tape) tape.Tensor {
	Ran.Of(t).Unmeasured |= EncodersAndDecoders
	x := t.Beside(0)
	t.Rank(x, 3, "(batch, length, hidden)")
	return x
}

// weigh multiplies the output by the sigmoid of its gates.
func (l Attention) weigh(t *tape.Tape, y tape.Tensor) tape.Tensor {
	gate := KeepOutput(t, *outputGate.Of(t))
	return t.Mul(y, gate)
}

// turned rotates heads as complex numbers and, if Unit, divides them by their lengths.
func (l Attention) turned(t *tape.Tape, x tape.Tensor, heads int) tape.Tensor {
	x = rotateComplex(t, x, heads, l.Size())
	if !l.Unit {
		return x
	}
	return unitHeads(t, x, heads, l.Size())
}

// keys returns the projection of keys.
func (l Attention) keys(narrow Linear) Linear {
	narrow.NoBias = narrow.NoBias || l.NoKeyBias
	return narrow
}

// copies makes queries, keys and values contiguous, heads before the length.
func (l Attention) copies(t *tape.Tape, q, k, v tape.Tensor) (tape.Tensor, tape.Tensor, tape.Tensor) {
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		shape := x.Shape
		if l.Spread {
			shape = q.Shape
		}
		y := t.Op(tape.Op{In: []tape.Tensor{*x}, Shape: shape})
		*x = y
	}
	return q, k, v
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
func (l Attention) normalise(t *tape.Tape, name string, x tape.Tensor, heads int) tape.Tensor {
	if l.QKNorm == NoQKNorm {
		return x
	}
	flat := x.Shape
	if l.QKNorm == NormHeads {
		seen := alloc.Shape{flat[0], flat[1], heads, l.Size()}
		if _, before := l.qkNorm(heads).(EachHead); l.Shifted || before {
			seen = alloc.Shape{flat[0], heads, flat[1], l.Size()}
		}
		x = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: seen, View: true})
	}
	x = t.Call(name, l.qkNorm(heads), x)
	if l.QKNorm != NormHeads {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: flat, View: true})
}

// unitHeads divides each head by its length, in float32.
func unitHeads(t *tape.Tape, x tape.Tensor, heads, size int) tape.Tensor {
	d := x.DType
	y := t.Widen(x)
	stats := tape.Own{Shape: alloc.Shape{x.Shape[0], x.Shape[1], heads, 1}, DType: alloc.Float32}
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{stats}})
	return t.In(d, y)
}
