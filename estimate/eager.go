package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// eager is attention in elementary operations, as transformers write it where no
// kernel of PyTorch does what a model needs.
func (l Attention) eager(t *Tape, q, k, v Tensor) (Tensor, error) {
	batch, length := q.Shape[0], q.Shape[1]
	scores := alloc.Shape{batch, l.Heads, length, k.Shape[1]}
	work := FLOPs(batch, l.Heads, length, k.Shape[1], l.size(), 2)
	wide := k.Shape.Clone()
	wide[2] = q.Shape[2]
	alone := k.Shape.Equal(wide) // each query head has keys and values of its own
	names := []Tensor{q, k, v}   // of variables
	k, err := t.Op(Op{In: []Tensor{k}, Shape: wide, View: alone})
	if err == nil {
		v, err = t.Op(Op{In: []Tensor{v}, Shape: wide, View: alone})
	}
	if err == nil {
		err = t.mask(or(l.masks, 1), batch, length)
	}
	if err != nil {
		return Tensor{}, err
	}
	steps := []Op{{In: []Tensor{q, k}, Keep: []Tensor{q, k}, FLOPs: work}, {}} // and scaled
	if l.Capped {
		steps = append(steps, Op{}, Op{KeepOutput: true}, Op{})
	}
	steps = append(steps, Op{In: []Tensor{t.masks}, PassGrad: true})
	if l.Sinks {
		steps = append(steps, l.sunk(t, scores)...)
	} else {
		steps = append(steps, softmax(q, scores)...)
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
	if l.Sinks {
		t.hold(masked)
	}
	if l.Dropout > 0 {
		if s, err = (Dropout{P: l.Dropout}).Forward(t, s); err != nil {
			return Tensor{}, err
		}
	}
	y, err := t.Op(Op{In: []Tensor{s, v}, Shape: q.Shape, Keep: []Tensor{s, v}, FLOPs: work})
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
func softmax(x Tensor, scores alloc.Shape) []Op {
	o := Op{KeepOutput: true, DType: alloc.Float32}
	if x.DType.Bits() >= 32 {
		return []Op{o}
	}
	copied, _ := scores.Bytes(alloc.Float32) // what overflows, the operation reports
	o.Workspace = min(copied, maxTotal)
	return []Op{o, {DType: x.DType}}
}

// sunk is the softmax of the scores joined with the sinks, of which the largest was
// taken away, and the scores' part of it.
func (l Attention) sunk(t *Tape, scores alloc.Shape) []Op {
	joined := t.resized(scores, scores[3]+1)
	return []Op{
		{Shape: joined, Params: true},
		{Shape: joined, KeepOwn: []Own{{t.resized(scores, 1), alloc.Int64}}},
		{Shape: joined, KeepOutput: true},
		{View: true},
	}
}

// mask makes the masks of eager attention, for so many kinds of layers, once.
func (t *Tape) mask(kinds, batch, length int) error {
	shape := alloc.Shape{kinds, batch, length, length}
	if t.masks.Shape.Equal(shape) {
		return nil
	}
	var err error
	t.masks, err = t.Const(t.Activation(), shape...)
	return err
}
