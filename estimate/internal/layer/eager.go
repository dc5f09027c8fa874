package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// eager is attention in elementary operations, as transformers write it where no
// kernel of PyTorch does what a model needs.
type eager struct {
	heads, size int
	masks       int // kinds of layers that have masks of their own
	dropout     float64
	capped      bool
	sinks       bool
}

func (l eager) attend(t *tape.Tape, q, k, v tape.Tensor) (tape.Tensor, error) {
	f := &tape.Flow{T: t}
	seen := Seen(t, k.Dim(1))
	wide := alloc.Shape{k.Dim(0), seen, q.Dim(2)}
	alone := k.Dim(2) == q.Dim(2)   // each query head has keys and values of its own
	names := []tape.Tensor{q, k, v} // of variables
	k = f.Op(tape.Op{In: []tape.Tensor{k}, Shape: wide, View: alone})
	v = f.Op(tape.Op{In: []tape.Tensor{v}, Shape: wide, View: alone})
	if f.Fault == nil {
		f.Fault = makeMask(t, l.masks, q.Dim(0), q.Dim(1), seen)
	}
	lowQ := f.Lower(q)
	k = f.Lower(k)
	s := l.weights(f, lowQ, k, q.DType)
	lowS := f.Lower(s)
	v = f.Lower(v)
	y := f.Op(tape.Op{In: []tape.Tensor{lowS, v}, Shape: q.Shape, Keep: []tape.Tensor{lowS, v}, FLOPs: setting.Flops(s.Shape, l.size, 2)})
	y = f.Copy(y) // heads and length change places again
	f.Hold(append(names, k, v, s)...)
	*EagerWeights.Of(t) = s
	return y, f.Fault
}

// weights are the softmax of the scores, in an element type.
func (l eager) weights(f *tape.Flow, q, k tape.Tensor, d alloc.DType) tape.Tensor {
	scores := alloc.Shape{q.Dim(0), l.heads, q.Dim(1), k.Dim(1)}
	s := f.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, l.size, 2)})
	s = f.Scale(s)
	if l.capped {
		s = f.Op(tape.Op{In: []tape.Tensor{f.Scale(s)}, Shape: scores, KeepOutput: true})
		s = f.Scale(s)
	}
	s = f.Op(tape.Op{In: []tape.Tensor{s, masks.Of(f.T).of}, Shape: scores, PassGrad: true})
	if l.sinks {
		s = l.sunk(f, s)
	} else {
		s = softmax(f, s, d)
	}
	if l.dropout > 0 {
		s = f.Apply(Dropout{P: l.dropout}, s)
	}
	return s
}

// softmax is the softmax of scores in float32, rounded to an element type.
func softmax(f *tape.Flow, s tape.Tensor, d alloc.DType) tape.Tensor {
	o := tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOutput: true, DType: alloc.Float32}
	copied, _ := s.Shape.Bytes(alloc.Float32) // what overflows, the operation reports
	copied = min(copied, setting.MaxTotal)
	if f.T.On() == setting.CUDA { // as keepSoftmax
		o.BackwardWorkspace = copied
	}
	if d.Bits() >= 32 {
		return f.Op(o)
	}
	o.Workspace = copied
	return f.Op(tape.Op{In: []tape.Tensor{f.Op(o)}, Shape: s.Shape, DType: d})
}

// sunk is the softmax of the scores joined with the sinks, of which the largest was
// taken away, and the scores' part of it.
func (l eager) sunk(f *tape.Flow, scores tape.Tensor) tape.Tensor {
	joined := f.T.Resized(scores.Shape, scores.Dim(-1)+1)
	s := f.Op(tape.Op{In: []tape.Tensor{scores}, Shape: joined, Params: true})
	s = f.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOwn: []tape.Own{{Shape: f.T.Resized(scores.Shape, 1), DType: alloc.Int64}}})
	s = f.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOutput: true})
	s = f.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores.Shape, View: true})
	f.Hold(scores)
	return s
}

// mask is added to the scores of attention. All layers have it together, and it lives as long as the model runs.
type mask struct{ of tape.Tensor }

// Lasting is the mask.
func (m *mask) Lasting() []tape.Tensor { return []tape.Tensor{m.of} }

var masks tape.Slot[mask]

// EagerWeights are the weights that eager attention returned last, which a block's code may name.
var EagerWeights tape.Slot[tape.Tensor]

// makeMask makes the masks, for so many kinds of layers, once.
func makeMask(t *tape.Tape, kinds, batch, length, keys int) error {
	shape := alloc.Shape{kinds, batch, length, keys}
	if slices.Equal(masks.Of(t).of.Shape, shape) {
		return nil
	}
	var err error
	masks.Of(t).of, err = t.Const(t.Activation(), shape...)
	return err
}
