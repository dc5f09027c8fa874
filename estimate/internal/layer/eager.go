package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// eager is attention in elementary operations, as transformers writes it for models that no kernel
// of PyTorch serves.
type eager struct {
	heads, size int
	masks       int // number of kinds of layers with different masks
	dropout     float64
	capped      bool
	sinks       bool
}

func (l eager) attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	seen := Seen(t, k.Dim(1))
	wide := alloc.Shape{k.Dim(0), seen, q.Dim(2)}
	alone := k.Dim(2) == q.Dim(2)   // each query head has its own keys and values
	names := []tape.Tensor{q, k, v} // tensors that variables of the code hold
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: wide, View: alone})
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: wide, View: alone})
	makeMask(t, l.masks, q.Dim(0), q.Dim(1), seen)
	lowQ := t.Lower(q)
	k = t.Lower(k)
	s := l.weights(t, lowQ, k, q.DType)
	lowS := t.Lower(s)
	v = t.Lower(v)
	y := t.Op(tape.Op{In: []tape.Tensor{lowS, v}, Shape: q.Shape, Keep: []tape.Tensor{lowS, v}, FLOPs: setting.Flops(s.Shape, l.size, 2)})
	y = t.Copy(y) // heads and length are swapped back
	t.Hold(append(names, k, v, s)...)
	*EagerWeights.Of(t) = s
	return y
}

// weights returns the softmax of the scores, in an element type.
func (l eager) weights(t *tape.Tape, q, k tape.Tensor, d alloc.DType) tape.Tensor {
	scores := alloc.Shape{q.Dim(0), l.heads, q.Dim(1), k.Dim(1)}
	s := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, l.size, 2)})
	s = t.Scale(s)
	if l.capped {
		s = t.Op(tape.Op{In: []tape.Tensor{t.Scale(s)}, Shape: scores, KeepOutput: true})
		s = t.Scale(s)
	}
	s = t.Op(tape.Op{In: []tape.Tensor{s, masks.Of(t).of}, Shape: scores, PassGrad: true})
	if l.sinks {
		s = l.sunk(t, s)
	} else {
		s = softmax(t, s, d)
	}
	if l.dropout > 0 {
		s = t.Apply(Dropout{P: l.dropout}, s)
	}
	return s
}

// softmax computes a softmax in float32 and rounds it to an element type.
func softmax(t *tape.Tape, s tape.Tensor, d alloc.DType) tape.Tensor {
	o := tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOutput: true, DType: alloc.Float32}
	copied, _ := s.Shape.Bytes(alloc.Float32) // the operation reports an overflow
	copied = min(copied, setting.MaxTotal)
	if t.On() == setting.CUDA { // like keepSoftmax
		o.BackwardWorkspace = copied
	}
	if d.Bits() >= 32 {
		return t.Op(o)
	}
	o.Workspace = copied
	return t.Op(tape.Op{In: []tape.Tensor{t.Op(o)}, Shape: s.Shape, DType: d})
}

// sunk returns the softmax over scores and sinks together, after the largest was subtracted,
// without the sinks' part.
func (l eager) sunk(t *tape.Tape, scores tape.Tensor) tape.Tensor {
	joined := t.Resized(scores.Shape, scores.Dim(-1)+1)
	s := t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: joined, Params: true})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOwn: []tape.Own{{Shape: t.Resized(scores.Shape, 1), DType: alloc.Int64}}})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOutput: true})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores.Shape, View: true})
	t.Hold(scores)
	return s
}

// mask is added to the scores of attention. All layers share it, and it lives as long as the model
// runs.
type mask struct{ of tape.Tensor }

// Lasting returns the mask.
func (m *mask) Lasting() []tape.Tensor { return []tape.Tensor{m.of} }

var masks tape.Slot[mask]

// EagerWeights holds the weights that eager attention returned last, which a block's code may keep
// in a variable.
var EagerWeights tape.Slot[tape.Tensor]

// makeMask makes the masks for all kinds of layers, if they are not there yet.
func makeMask(t *tape.Tape, kinds, batch, length, keys int) {
	shape := alloc.Shape{kinds, batch, length, keys}
	if !slices.Equal(masks.Of(t).of.Shape, shape) {
		masks.Of(t).of = t.Const(t.Activation(), shape...)
	}
}
