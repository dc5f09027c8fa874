package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Attention is multi-head attention with its projections, over (batch, length, hidden).
//
// Flash attention, the default, keeps queries, keys, values, its output and one log-sum-exp for
// each query and head (arXiv:2205.14135, section 3.1). Plain attention keeps the scores. What each
// keeps follows PyTorch's scaled_dot_product_attention; on the CPU that uses the plain form if
// there is dropout.
type Attention struct {
	Hidden, Heads int
	KVHeads       int           // heads of keys and values; 0 means Heads
	HeadSize      int           // 0 means Hidden / Heads
	NoBias        bool          // none of the projections has a bias
	NoOutBias     bool          // the output projection has no bias
	OutBias       bool          // the output projection has a bias in spite of NoBias
	Packed        bool          // one projection for queries, keys and values
	Rotary        bool          // rotary positions
	RotaryDim     int           // how many elements of each head rotate; 0 means all
	QKNorm        QKNorm        // norms of queries and keys
	Plain         bool          // the scores are held in memory
	Eager         bool          // the scores are held, and all tensors that they are made of, as in transformers' own code
	Capped        bool          // a tanh caps the scores; Eager is needed
	Narrow        bool          // the softmax of the scores is in the type of activations; Eager is needed
	Sinks         bool          // each head has a learned score beside those of the keys; Eager is needed
	Dropout       float64       // of the scores
	Cross         bool          // keys and values come from the first tensor beside the input, such as an encoder's output
	Bias          *RelativeBias // added to the scores; nil means none

	Names     *AttentionNames
	Joined    bool // rotated heads are joined again, so that the output is in their order and must be copied
	Shifted   bool // the norms are Gemma's, with heads before the length
	Rotations int  // number of kinds of layers with different rotary tables; 0 means 1
	Masks     int  // number of kinds of layers with different masks; 0 means 1
	LateNorm  bool // the norms are those of OLMo 2
	Paired    bool // pairs of neighbouring elements rotate, so that tables are half as wide

	Elementary bool // a model that asks for the eager kernel gets Eager, not Plain

	// Beside returns what is added to the projection of the queries, keys or values of x, by its name in Names; nil adds
	// nothing.
	Beside func(projection string, x tape.Tensor) tape.Tensor

	Projection    func(Linear) tape.Layer          // wraps the projections; nil leaves them as they are
	HeadNorm      func(heads, size int) tape.Layer // the norm of queries and keys, instead of RMSNorm
	Sliced        bool                             // Packed queries, keys and values are taken by slicing, not by a split
	Clipped       bool                             // queries, keys and values are clamped in place
	Copied        bool                             // queries, keys and values are made contiguous
	Spread        bool                             // the copies of keys and values are repeated for each query head
	Masked        bool                             // the kernel always gets a mask
	Packs         bool                             // the kernel gets one mask of numbers, which all layers share: the sequence packs several that do not see each other
	Numbers       bool                             // the kernel gets a mask of numbers, the last tensor beside the input
	Biased        bool                             // the kernel gets a mask for each head, which all layers share
	Scaled        bool                             // queries are multiplied by the scale before the kernel
	Batched       bool                             // attention as in Bloom, with products of three-dimensional tensors
	Complex       bool                             // rotation multiplies complex numbers; layers without rotation scale queries by position
	Unit          bool                             // rotated queries and keys are divided by their lengths
	ScaledQueries bool                             // rotated queries are scaled by position
	NormLast      bool                             // queries and keys are normed after rotation
	Gated         bool                             // the projection of queries also makes gates for the output
	Tables        alloc.DType                      // element type of the rotary tables and of the rotation; 0 means that of activations
	Anew          bool                             // each layer makes rotary tables of its own
	Apart         bool                             // queries and keys have rotary tables of their own
	PerText       bool                             // each sequence has rotary tables of its own
	Borrowed      bool                             // keys and values come from an earlier layer: the last one that has a window too, or has none too
	ValueNorm     bool                             // values are normed, without a weight
	KeysOnly      bool                             // values are the output of the key projection, before its norm
	NoKeyBias     bool                             // the key projection has no bias
	Zeros         bool                             // zeros are added to the scores, as T5's cross-attention does
	Window        int                              // length of a sliding window; 0 means none
	Returns       bool                             // the model may return keys and values
	Always        bool                             // it returns them even if the layer is checkpointed
	Widens        bool                             // it may return keys in float32 too, beside those that it keeps
}

// QKNorm is how attention normalises queries and keys before it rotates them.
type QKNorm uint8

// The norms of queries and keys.
const (
	NoQKNorm     QKNorm = iota
	NormHeads           // each head separately, as Qwen3 and Gemma 3 do
	NormAllHeads        // all heads together, as OLMo 2 does
)

// AttentionNames are the names of the projections, if they differ from Llama's. An empty Out means
// that the output is not projected.
type AttentionNames struct{ Q, K, V, Packed, Out, QNorm, KNorm string }

var llamaAttention = &AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Packed: "qkv_proj", Out: "o_proj"}

func (l Attention) Size() int {
	if l.HeadSize != 0 || l.Heads == 0 {
		return l.HeadSize
	}
	return l.Hidden / l.Heads
}

func (l Attention) part() (q, kv, packed, out Linear) {
	size := l.Size()
	q = Linear{In: l.Hidden, Out: l.Heads * size, NoBias: l.NoBias, Split: ByColumns}
	kv, packed = q, q
	if l.Gated {
		q.Out *= 2
	}
	kv.Out = setting.Or(l.KVHeads, l.Heads) * size
	packed.Out += 2 * kv.Out
	return q, kv, packed, Linear{In: l.Heads * size, Out: l.Hidden, NoBias: !l.OutBias && (l.NoBias || l.NoOutBias), Split: ByRows}
}

func (l Attention) Declare(d *tape.Declaration) {
	kv := setting.Or(l.KVHeads, l.Heads)
	d.Want("Hidden", l.Hidden, 1)
	d.Want("Heads", l.Heads, 1)
	d.Want("KVHeads", kv, 1)
	d.Want("HeadSize", l.Size(), 1)
	d.Want("RotaryDim", l.RotaryDim, 0)
	switch {
	case l.HeadSize == 0 && l.Hidden%l.Heads != 0:
		d.Failf("Hidden %d does not divide into %d Heads: set HeadSize", l.Hidden, l.Heads)
	case l.Heads%kv != 0:
		d.Failf("%d Heads do not divide among %d KVHeads", l.Heads, kv)
	case l.Rotary && setting.Or(l.RotaryDim, l.Size()) == l.Size() && l.Size()%2 != 0:
		d.Failf("heads of %d elements rotate: want pairs", l.Size())
	case l.RotaryDim > l.Size():
		d.Failf("RotaryDim is %d: want at most the size of a head, %d", l.RotaryDim, l.Size())
	case l.QKNorm > NormAllHeads:
		d.Failf("QKNorm is %d: want NoQKNorm, NormHeads or NormAllHeads", l.QKNorm)
	case l.QKNorm != NoQKNorm && l.Packed:
		d.Failf("queries and keys that are Packed together have no QKNorm")
	case l.Cross && l.Packed:
		d.Failf("Packed projections read one tensor: Cross attention reads two")
	case l.Bias != nil && (l.Eager || l.Capped || l.Sinks):
		d.Failf("scores that are Eager, Capped or have Sinks have no Bias")
	case !(l.Dropout >= 0 && l.Dropout < 1):
		d.Failf("Dropout is %v: want 0 or more and less than 1", l.Dropout)
	}
	d.WantHeads(l.Heads, kv)
	n := setting.Or(l.Names, llamaAttention)
	q, narrow, packed, out := l.part()
	if l.Packed {
		d.Layer(n.Packed, packed)
	} else {
		d.Layer(n.Q, wrapped(l.Projection, q))
	}
	if !l.Packed && !l.Borrowed {
		d.Layer(n.K, wrapped(l.Projection, l.keys(narrow)))
		if !l.KeysOnly {
			d.Layer(n.V, wrapped(l.Projection, narrow))
		}
	}
	if l.QKNorm != NoQKNorm {
		d.Layer(setting.Or(n.QNorm, "q_norm"), l.qkNorm(l.Heads))
		if !l.Borrowed {
			d.Layer(setting.Or(n.KNorm, "k_norm"), l.qkNorm(kv))
		}
	}
	if n.Out != "" {
		d.Layer(n.Out, wrapped(l.Projection, out))
	}
	if l.Sinks {
		d.Param("sinks", l.Heads)
	}
	if l.Bias != nil {
		l.Bias.declare(d, l.Heads)
	}
}

func (l Attention) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	q, k, v := l.project(t, x)
	if l.Copied {
		q, k, v = l.copies(t, q, k, v)
	}
	q, k = l.encodePositions(t, q, k)
	l.lend(t, k, v)
	if l.Scaled {
		q = (Multiple{}).Forward(t, q)
	}
	y := l.attend(t, q, k, v)
	if l.Joined {
		y = t.Copy(y)
	}
	if l.Gated {
		y = l.weigh(t, y)
	}
	name := setting.Or(l.Names, llamaAttention).Out
	if name == "" { // the caller projects the output
		return y
	}
	_, _, _, out := l.part()
	return t.Call(name, wrapped(l.Projection, out), y)
}

// wrapped returns a projection within what wraps it, if anything does.
func wrapped(by func(Linear) tape.Layer, projection Linear) tape.Layer {
	if by == nil {
		return projection
	}
	return by(projection)
}

// encodePositions rotates queries and keys by their positions, and then norms them if NormLast.
func (l Attention) encodePositions(t *tape.Tape, q, k tape.Tensor) (tape.Tensor, tape.Tensor) {
	q, k = l.rotate(t, q, k)
	if l.NormLast {
		q, k = l.norms(t, q, k)
	}
	if l.ScaledQueries {
		q = scaledByPosition(t, q)
	}
	return q, k
}

// rotate rotates queries and keys by their positions.
func (l Attention) rotate(t *tape.Tape, q, k tape.Tensor) (tape.Tensor, tape.Tensor) {
	size, kv := l.Size(), setting.Or(l.KVHeads, l.Heads)
	if l.Copied && l.Spread {
		kv = l.Heads
	}
	switch {
	case l.Paired:
		q = rotatePairs(t, q, l.Heads, size, size/2)
		k = rotatePairs(t, k, kv, size, size/2)
	case l.Complex && l.Rotary:
		q = l.turned(t, q, l.Heads)
		k = l.turned(t, k, kv)
	case l.Complex:
		q = scaledByPosition(t, q)
	case l.Rotary:
		rotated, kinds := setting.Or(l.RotaryDim, size), setting.Or(l.Rotations, 1)
		if l.Anew {
			*rotaryTables.Of(t) = nil
		}
		if l.PerText {
			kinds = q.Shape[0]
		}
		q = rotate(t, q, size, rotated, kinds, l.Tables)
		if l.Apart {
			*rotaryTables.Of(t) = nil
		}
		if !l.Borrowed {
			k = rotate(t, k, size, rotated, kinds, l.Tables)
		}
	}
	return q, k
}

// lend notes the keys and values that later layers may borrow and that the model may return.
func (l Attention) lend(t *tape.Tape, k, v tape.Tensor) {
	if !l.Borrowed {
		lent.Of(t)[l.kind()] = [2]tape.Tensor{k, v}
	}
	if l.Returns {
		t.ReturnsCache(k, v, l.Always)
		if l.Widens {
			t.ReturnsCopies(k)
		}
	}
}

// attend computes attention with the kernel that the model uses.
func (l Attention) attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	switch {
	case l.Batched:
		return batched(t, q, k, v, l.Heads, l.Size(), l.Dropout)
	case l.Eager || (l.Capped || l.Sinks) && !fused(t) || l.Elementary && t.Cfg.Kernel == setting.EagerAttention:
		return eager{l.Heads, l.Size(), setting.Or(l.Masks, 1), l.Dropout, l.Capped, l.Sinks, l.Narrow}.attend(t, q, k, v)
	}
	uncached := Uncached.Of(t)
	outer := *uncached
	*uncached = outer || l.Cross
	y := l.kernel(t, q, k, v)
	*uncached = outer
	return y
}

// fused reports whether a kernel takes capped scores and sinks, as the flash attention that serves models does.
func fused(t *tape.Tape) bool {
	return t.Cfg.Kernel == setting.FlashAttention && t.Cfg.Cache != nil && !t.Cfg.Training
}

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
	q := l.sum(t, n.Q, wide, x)
	if l.Gated {
		q = l.gates(t, q)
	}
	if l.normsLate() {
		return q
	}
	return l.normalise(t, setting.Or(n.QNorm, "q_norm"), q, l.Heads)
}

// sum returns a projection of x, and what is added to it.
func (l Attention) sum(t *tape.Tape, name string, projection Linear, x tape.Tensor) tape.Tensor {
	y := t.Call(name, wrapped(l.Projection, projection), x)
	if l.Beside == nil {
		return y
	}
	return t.Add(y, l.Beside(name, x))
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
	k = l.sum(t, n.K, l.keys(narrow), x)
	v = k
	if !l.normsLate() {
		k = l.normalise(t, setting.Or(n.KNorm, "k_norm"), k, kv)
	}
	if !l.KeysOnly {
		v = l.sum(t, n.V, narrow, x)
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

// scaledByPosition multiplies each query by a number for its position, and keeps these numbers.
func scaledByPosition(t *tape.Tape, q tape.Tensor) tape.Tensor {
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
