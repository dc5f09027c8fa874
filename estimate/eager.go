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
	batch, length := q.Shape[0], q.Shape[1]
	seen := t.seen(k.Shape[1])
	scores := alloc.Shape{batch, l.heads, length, seen}
	work := FLOPs(batch, l.heads, length, seen, l.size, 2)
	wide := k.Shape.Clone()
	alone := wide[2] == q.Shape[2] // each query head has keys and values of its own
	wide[1], wide[2] = seen, q.Shape[2]
	names := []Tensor{q, k, v} // of variables
	k, err := t.Op(Op{In: []Tensor{k}, Shape: wide, View: alone})
	if err == nil {
		v, err = t.Op(Op{In: []Tensor{v}, Shape: wide, View: alone})
	}
	if err == nil {
		err = t.mask(l.masks, batch, length, seen)
	}
	if err != nil {
		return Tensor{}, err
	}
	lowQ, err := t.lower(q)
	if err == nil {
		k, err = t.lower(k)
	}
	if err != nil {
		return Tensor{}, err
	}
	steps := []Op{{In: []Tensor{lowQ, k}, Keep: []Tensor{lowQ, k}, FLOPs: work}, {}} // and scaled
	if l.capped {
		steps = append(steps, Op{}, Op{KeepOutput: true}, Op{})
	}
	steps = append(steps, Op{In: []Tensor{t.masks}, PassGrad: true})
	if l.sinks {
		steps = append(steps, l.sunk(t, scores)...)
	} else {
		steps = append(steps, softmax(t, q, scores)...)
	}
	s, masked := q, q
	for i, o := range steps {
		if o.Shape == nil {
			o.Shape = scores
		}
		if i > 0 {
			o.In = append([]Tensor{s}, o.In...)
		}
		if s, err = t.Op(o); err != nil {
			return Tensor{}, err
		}
		if len(o.In) > 1 && i > 0 {
			masked = s
		}
	}
	if l.sinks {
		t.hold(masked)
	}
	if l.dropout > 0 {
		if s, err = (Dropout{P: l.dropout}).Forward(t, s); err != nil {
			return Tensor{}, err
		}
	}
	lowS, err := t.lower(s)
	if err == nil {
		v, err = t.lower(v)
	}
	if err != nil {
		return Tensor{}, err
	}
	y, err := t.Op(Op{In: []Tensor{lowS, v}, Shape: q.Shape, Keep: []Tensor{lowS, v}, FLOPs: work})
	if err != nil {
		return Tensor{}, err
	}
	y, err = t.Op(Op{In: []Tensor{y}, Shape: y.Shape}) // heads and length change places again
	for _, x := range append(names, k, v, s) {
		t.hold(x)
	}
	t.attention = s
	return y, err
}

// softmax is the softmax of scores in float32, rounded to the type of x.
func softmax(t *Tape, x Tensor, scores alloc.Shape) []Op {
	o := Op{KeepOutput: true, DType: alloc.Float32}
	copied, _ := scores.Bytes(alloc.Float32) // what overflows, the operation reports
	copied = min(copied, maxTotal)
	if t.On() == CUDA { // as keepSoftmax
		o.BackwardWorkspace = copied
	}
	if x.DType.Bits() >= 32 {
		return []Op{o}
	}
	o.Workspace = copied
	return []Op{o, {DType: x.DType}}
}

// sunk is the softmax of the scores joined with the sinks, of which the largest was
// taken away, and the scores' part of it.
func (l eager) sunk(t *Tape, scores alloc.Shape) []Op {
	joined := t.resized(scores, scores[3]+1)
	return []Op{
		{Shape: joined, Params: true},
		{Shape: joined, KeepOwn: []Own{{t.resized(scores, 1), alloc.Int64}}},
		{Shape: joined, KeepOutput: true},
		{View: true},
	}
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
