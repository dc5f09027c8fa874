package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// eager is attention in elementary operations, as transformers write it where no
// kernel of PyTorch does what a model needs.
type eager struct {
	heads, size int
	masks       int // kinds of layers that have masks of their own
	dropout     float64
	capped      bool
	sinks       bool
}

func (l eager) attend(t *Tape, q, k, v Tensor) (Tensor, error) {
	f := &Flow{t: t}
	seen := t.seen(k.Dim(1))
	wide := alloc.Shape{k.Dim(0), seen, q.Dim(2)}
	alone := k.Dim(2) == q.Dim(2) // each query head has keys and values of its own
	names := []Tensor{q, k, v}    // of variables
	k = f.Op(Op{In: []Tensor{k}, Shape: wide, View: alone})
	v = f.Op(Op{In: []Tensor{v}, Shape: wide, View: alone})
	if f.err == nil {
		f.err = t.mask(l.masks, q.Dim(0), q.Dim(1), seen)
	}
	lowQ := f.lower(q)
	k = f.lower(k)
	s := l.weights(f, lowQ, k, q.DType)
	lowS := f.lower(s)
	v = f.lower(v)
	y := f.Op(Op{In: []Tensor{lowS, v}, Shape: q.Shape, Keep: []Tensor{lowS, v}, FLOPs: flops(s.Shape, l.size, 2)})
	y = f.Copy(y) // heads and length change places again
	f.hold(append(names, k, v, s)...)
	t.attention = s
	return y, f.err
}

// weights are the softmax of the scores, in an element type.
func (l eager) weights(f *Flow, q, k Tensor, d alloc.DType) Tensor {
	scores := alloc.Shape{q.Dim(0), l.heads, q.Dim(1), k.Dim(1)}
	s := f.Op(Op{In: []Tensor{q, k}, Shape: scores, Keep: []Tensor{q, k}, FLOPs: flops(scores, l.size, 2)})
	s = f.Scale(s)
	if l.capped {
		s = f.Op(Op{In: []Tensor{f.Scale(s)}, Shape: scores, KeepOutput: true})
		s = f.Scale(s)
	}
	s = f.Op(Op{In: []Tensor{s, f.t.masks}, Shape: scores, PassGrad: true})
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
func softmax(f *Flow, s Tensor, d alloc.DType) Tensor {
	o := Op{In: []Tensor{s}, Shape: s.Shape, KeepOutput: true, DType: alloc.Float32}
	copied, _ := s.Shape.Bytes(alloc.Float32) // what overflows, the operation reports
	copied = min(copied, maxTotal)
	if f.t.On() == CUDA { // as keepSoftmax
		o.BackwardWorkspace = copied
	}
	if d.Bits() >= 32 {
		return f.Op(o)
	}
	o.Workspace = copied
	return f.Op(Op{In: []Tensor{f.Op(o)}, Shape: s.Shape, DType: d})
}

// sunk is the softmax of the scores joined with the sinks, of which the largest was
// taken away, and the scores' part of it.
func (l eager) sunk(f *Flow, scores Tensor) Tensor {
	joined := f.t.resized(scores.Shape, scores.Dim(-1)+1)
	s := f.Op(Op{In: []Tensor{scores}, Shape: joined, Params: true})
	s = f.Op(Op{In: []Tensor{s}, Shape: joined, KeepOwn: []Own{{f.t.resized(scores.Shape, 1), alloc.Int64}}})
	s = f.Op(Op{In: []Tensor{s}, Shape: joined, KeepOutput: true})
	s = f.Op(Op{In: []Tensor{s}, Shape: scores.Shape, View: true})
	f.hold(scores)
	return s
}

// mask makes the masks of eager attention, for so many kinds of layers, once.
func (t *Tape) mask(kinds, batch, length, keys int) error {
	shape := alloc.Shape{kinds, batch, length, keys}
	if t.masks.Shape.Equal(shape) {
		return nil
	}
	var err error
	t.masks, err = t.Const(t.Activation(), shape...)
	return err
}
