package ggml

// block adds a block, of which the tokens alone go on that ids names.
func (b *builder) block(of Block, x, ids *tensor) *tensor {
	if of.Parallel {
		return b.parallel(of, x, ids)
	}
	add := func(y, x *tensor) *tensor {
		if of.ResidualFirst {
			y, x = x, y
		}
		return over(x.size, y, x)
	}
	if of.Mixer != nil {
		y := of.Mixer.build(b, b.before(of, x))
		if of.Beside != nil {
			y = over(y.size, y, of.Beside.build(b, b.before(of, x)))
		}
		y, x = b.chosen(y, ids), b.chosen(x, ids)
		x = add(y, x)
	} else {
		x = b.chosen(x, ids)
	}
	if of.MLP != nil {
		if ids != nil {
			defer b.outputs()()
		}
		x = add(of.MLP.build(b, b.before(of, x)), x)
	}
	if b.own == nil {
		return x
	}
	gate := b.product(b.PerLayer, x)
	y := b.product(b.Hidden, over(gate.size, over(gate.size, gate), part(b.own, b.row(b.PerLayer))))
	y = over(y.size, x, b.normed(y))
	return over(y.size, y)
}

// parallel adds a block whose mixer and MLP read the same.
func (b *builder) parallel(of Block, x, ids *tensor) *tensor {
	normed := b.before(of, x)
	mixed := of.Mixer.build(b, normed)
	if of.SecondNorm {
		normed = b.before(of, x)
	}
	if ids != nil {
		mixed, normed, x = b.chosen(mixed, ids), b.chosen(normed, ids), b.chosen(x, ids)
		defer b.outputs()()
	}
	y := of.MLP.build(b, normed)
	terms := [3]*tensor{y, x, mixed}
	switch of.Sum {
	case MLPMixerInput:
		terms = [3]*tensor{y, mixed, x}
	case MixerMLPInput:
		terms = [3]*tensor{mixed, y, x}
	}
	return over(y.size, over(y.size, terms[0], terms[1]), terms[2])
}

// before returns what a part of a block reads.
func (b *builder) before(of Block, x *tensor) *tensor {
	if of.NoNormsBefore {
		return x
	}
	return b.normed(x)
}

// chosen returns the rows of the tokens that ids names, or all if it is nil.
func (b *builder) chosen(t, ids *tensor) *tensor {
	if ids == nil {
		return t
	}
	return op(t.size/int64(b.s.Batch)*int64(b.s.Outputs), t, ids)
}

// outputs makes the tokens of the batch those whose logits are computed, and returns a function that makes them all again.
func (b *builder) outputs() func() {
	all := b.s.Batch
	b.s.Batch = b.s.Outputs
	return func() { b.s.Batch = all }
}
