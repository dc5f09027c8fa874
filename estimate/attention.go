package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Attention is multi-head attention with its projections, over (batch, length, hidden).
//
// Flash attention, the default, keeps queries, keys, values, its output and one
// log-sum-exp for each query and head (arXiv:2205.14135, section 3.1); Plain attention keeps
// the scores. What either keeps follows scaled_dot_product_attention of PyTorch,
// which on the CPU falls back to the plain form where there is dropout.
type Attention struct {
	Hidden, Heads int
	KVHeads       int           // heads of keys and values; 0 means Heads
	HeadSize      int           // 0 means Hidden / Heads
	NoBias        bool          // none of the projections has a bias
	NoOutBias     bool          // the output's projection has none
	Packed        bool          // one projection for queries, keys and values
	Rotary        bool          // rotary positions
	RotaryDim     int           // elements of each head that rotate; 0 means all
	QKNorm        QKNorm        // norms of queries and keys
	Plain         bool          // hold the scores
	Eager         bool          // hold the scores and all that they are made of, as transformers' own code does
	Capped        bool          // scores are capped by a tanh, which is Eager
	Sinks         bool          // each head has a learned score beside those of the keys, which is Eager
	Dropout       float64       // of the scores
	Cross         bool          // keys and values are of the first tensor beside the input, such as an encoder's output
	Bias          *RelativeBias // of the scores; nil for none

	names     *attentionNames
	joined    bool // rotated heads are put together again, so that the output is in their order and must be copied
	shifted   bool // the norms are Gemma's, of heads before the length
	rotations int  // kinds of layers that have rotary tables of their own; 0 means 1
	masks     int  // kinds of layers that have masks of their own; 0 means 1
	lateNorm  bool // the norms are those of OLMo 2
	paired    bool // rotation is that of pairs of elements, by tables of half their number

	elementary bool // the eager form is Eager, not Plain

	headNorm  func(heads, size int) Layer // the norm of queries and keys, in place of RMSNorm
	sliced    bool                        // queries, keys and values that are Packed are slices, not a split
	clipped   bool                        // queries, keys and values are bounded in place
	copied    bool                        // queries, keys and values are made contiguous
	spread    bool                        // keys and values are repeated for each query head when they are copied
	masked    bool                        // the kernel is given a mask always
	biased    bool                        // it is given a mask of each head, which all layers have together
	scaled    bool                        // queries are multiplied before the kernel
	batched   bool                        // attention is Bloom's, of three-dimensional products
	complex   bool                        // rotation is that of complex numbers; where there is none, queries are weighed by their place
	unit      bool                        // rotated queries and keys are divided by their lengths
	placed    bool                        // rotated queries are weighed by their place
	normLast  bool                        // queries and keys are normed after they are rotated
	gated     bool                        // the projection of queries makes gates of the output besides
	tables    alloc.DType                 // of the rotary tables, in which rotation is computed; 0 for that of activations
	anew      bool                        // rotary tables are made for each layer
	perText   bool                        // each sequence has rotary tables of its own
	borrowed  bool                        // keys and values are those of the last layer with or without a window
	valueNorm bool                        // values are normed, without a weight
	noKeyBias bool                        // the projection of keys has no bias
	zeros     bool                        // zeros are added to the scores, as T5's cross-attention does
	window    int                         // of sliding window attention; 0 for none
	returns   bool                        // the model may return keys and values
	always    bool                        // it does so when the layer is checkpointed too
	widens    bool                        // it may return keys in float32, beside those that it keeps
}

// QKNorm is how attention normalises queries and keys before it rotates them.
type QKNorm uint8

// The norms of queries and keys.
const (
	NoQKNorm     QKNorm = iota
	NormHeads           // each head separately, as Qwen3 and Gemma 3 do
	NormAllHeads        // all heads together, as OLMo 2 does
)

// attentionNames are the names of the projections where they are not those of
// Llama's modules, and "" for an output that is not projected.
type attentionNames struct{ q, k, v, packed, out, qNorm, kNorm string }

var llamaAttention = &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", packed: "qkv_proj", out: "o_proj"}

func (l Attention) size() int {
	if l.HeadSize != 0 || l.Heads == 0 {
		return l.HeadSize
	}
	return l.Hidden / l.Heads
}

func (l Attention) part() (q, kv, packed, out Linear) {
	size := l.size()
	q = Linear{In: l.Hidden, Out: l.Heads * size, NoBias: l.NoBias, Split: ByColumns}
	kv, packed = q, q
	if l.gated {
		q.Out *= 2
	}
	kv.Out = or(l.KVHeads, l.Heads) * size
	packed.Out += 2 * kv.Out
	return q, kv, packed, Linear{In: l.Heads * size, Out: l.Hidden, NoBias: l.NoBias || l.NoOutBias, Split: ByRows}
}

// Declare implements Layer.
func (l Attention) Declare(d *Declaration) {
	kv := or(l.KVHeads, l.Heads)
	if !d.wantAll(setting{"Hidden", l.Hidden, 1}, setting{"Heads", l.Heads, 1}, setting{"KVHeads", kv, 1},
		setting{"HeadSize", l.size(), 1}, setting{"RotaryDim", l.RotaryDim, 0}) {
		return
	}
	switch {
	case l.HeadSize == 0 && l.Hidden%l.Heads != 0:
		d.Errorf("Hidden %d does not divide into %d Heads: set HeadSize", l.Hidden, l.Heads)
	case l.Heads%kv != 0:
		d.Errorf("%d Heads do not divide among %d KVHeads", l.Heads, kv)
	case l.RotaryDim > l.size():
		d.Errorf("RotaryDim is %d: want at most the size of a head, %d", l.RotaryDim, l.size())
	case l.QKNorm > NormAllHeads:
		d.Errorf("QKNorm is %d: want NoQKNorm, NormHeads or NormAllHeads", l.QKNorm)
	case l.QKNorm != NoQKNorm && l.Packed:
		d.Errorf("queries and keys that are Packed together have no QKNorm")
	case l.Cross && l.Packed:
		d.Errorf("Packed projections read one tensor: Cross attention reads two")
	case l.Bias != nil && (l.Eager || l.Capped || l.Sinks):
		d.Errorf("scores that are Eager, Capped or have Sinks have no Bias")
	case !(l.Dropout >= 0 && l.Dropout < 1):
		d.Errorf("Dropout is %v: want 0 or more and less than 1", l.Dropout)
	}
	d.wantHeads(l.Heads, kv)
	n := or(l.names, llamaAttention)
	q, narrow, packed, out := l.part()
	if l.Packed {
		d.Layer(n.packed, packed)
	} else {
		d.Layer(n.q, q)
	}
	if !l.Packed && !l.borrowed {
		d.Layer(n.k, l.keys(narrow))
		d.Layer(n.v, narrow)
	}
	if l.QKNorm != NoQKNorm {
		d.Layer(or(n.qNorm, "q_norm"), l.qkNorm(l.Heads))
		if !l.borrowed {
			d.Layer(or(n.kNorm, "k_norm"), l.qkNorm(kv))
		}
	}
	if n.out != "" {
		d.Layer(n.out, out)
	}
	if l.Sinks {
		d.Param("sinks", l.Heads)
	}
	if l.Bias != nil {
		l.Bias.declare(d, l.Heads)
	}
}

// Forward implements Layer.
func (l Attention) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	q, k, v, err := l.project(t, x)
	if err == nil && l.copied {
		q, k, v, err = l.copies(t, q, k, v)
	}
	if err == nil {
		q, k, err = l.place(t, q, k)
	}
	if err != nil {
		return Tensor{}, err
	}
	l.lend(t, k, v)
	if l.scaled {
		if q, err = (multiple{}).Forward(t, q); err != nil {
			return Tensor{}, err
		}
	}
	y, err := l.attend(t, q, k, v)
	if err == nil && l.joined {
		y, err = t.Op(Op{In: []Tensor{y}, Shape: y.Shape})
	}
	if err == nil && l.gated {
		y, err = l.weigh(t, y)
	}
	name := or(l.names, llamaAttention).out
	if err != nil || name == "" { // the caller projects
		return y, err
	}
	_, _, _, out := l.part()
	return t.Call(name, out, y)
}

// place gives queries and keys their positions, and norms them where that comes last.
func (l Attention) place(t *Tape, q, k Tensor) (Tensor, Tensor, error) {
	q, k, err := l.rotate(t, q, k)
	if err == nil && l.normLast {
		q, k, err = l.norms(t, q, k)
	}
	if err == nil && l.placed {
		q, err = weighedByPlace(t, q)
	}
	return q, k, err
}

// rotate turns queries and keys by their positions.
func (l Attention) rotate(t *Tape, q, k Tensor) (Tensor, Tensor, error) {
	size, kv := l.size(), or(l.KVHeads, l.Heads)
	if l.copied && l.spread {
		kv = l.Heads
	}
	var err error
	switch {
	case l.paired:
		if q, err = rotatePairs(t, q, l.Heads, size, size/2); err == nil {
			k, err = rotatePairs(t, k, kv, size, size/2)
		}
	case l.complex && l.Rotary:
		if q, err = l.turned(t, q, l.Heads); err == nil {
			k, err = l.turned(t, k, kv)
		}
	case l.complex:
		q, err = weighedByPlace(t, q)
	case l.Rotary:
		rotated, kinds := or(l.RotaryDim, size), or(l.rotations, 1)
		if l.anew {
			t.cos, t.sin = Tensor{}, Tensor{}
		}
		if l.perText {
			kinds = q.Shape[0]
		}
		if q, err = rotate(t, q, size, rotated, kinds, l.tables); err == nil && !l.borrowed {
			k, err = rotate(t, k, size, rotated, kinds, l.tables)
		}
	}
	return q, k, err
}

// lend notes the keys and values that later layers may borrow and the model may return.
func (l Attention) lend(t *Tape, k, v Tensor) {
	if !l.borrowed {
		t.lent[l.kind()] = [2]Tensor{k, v}
	}
	if l.returns {
		t.returnsCache(k, v, l.always)
	}
	if l.returns && l.widens {
		t.returnsCopies(k)
	}
}

// attend weighs the values by the kernel that the model has.
func (l Attention) attend(t *Tape, q, k, v Tensor) (Tensor, error) {
	switch {
	case l.batched:
		return batched(t, q, k, v, l.Heads, l.size(), l.Dropout)
	case l.Eager || l.Capped || l.Sinks || l.elementary && t.cfg.kernel == EagerAttention:
		return eager{l.Heads, l.size(), or(l.masks, 1), l.Dropout, l.Capped, l.Sinks}.attend(t, q, k, v)
	}
	outer := t.uncached
	t.uncached = outer || l.Cross
	y, err := l.kernel(t, q, k, v)
	t.uncached = outer
	return y, err
}
