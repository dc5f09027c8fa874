package ggml

// Convolution is a convolution along the tokens. It keeps the last Kernel - 1 inputs of each sequence
// (src/llama-hparams.cpp, n_embd_r).
type Convolution struct{ Channels, Kernel int }

// perSequence returns the size of a tensor of float32 with elements for each sequence.
func perSequence(b *builder, factors ...int) int64 { return b.bytes(4*b.s.Sequences, factors...) }

// convolved returns the convolution of x, whose last inputs are stored for the next batch.
func convolved(b *builder, c Convolution, x *tensor, between ...*tensor) *tensor {
	kept := perSequence(b, c.Channels, c.Kernel-1)
	states := op(kept, b.states)
	b.expand(states)
	joined := op(b.row(c.Channels)+kept, view(states), view(x))
	b.expand(store(part(joined, kept)))
	b.expand(between...)
	return op(b.row(c.Channels), joined)
}

// Mamba is Mamba's mixer (src/models/graph-context-mamba.cpp, build_mamba_layer).
type Mamba struct {
	Inner, State, Rank, Kernel int
	Normed                     bool // norms of the step and of what reads and writes the state (Jamba)
}

func (m Mamba) build(b *builder, x *tensor) *tensor {
	both := b.product(2*m.Inner, view(x))
	y := convolved(b, Convolution{m.Inner, m.Kernel}, part(both, b.row(m.Inner)))
	y = over(y.size, over(y.size, y))
	all := b.product(m.Rank+2*m.State, y)
	step := part(all, b.row(m.Rank))
	in, out := part(all, b.row(m.State)), part(all, b.row(m.State))
	if m.Normed {
		step, in, out = b.normed(step), b.normed(in), b.normed(out)
	} else {
		step = op(step.size, step)
	}
	wide := b.product(m.Inner, step)
	wide = over(wide.size, wide)
	states := perSequence(b, m.Inner, m.State)
	scanned := op(b.row(m.Inner)+states, view(y), wide, in, out, b.states)
	b.expand(store(part(scanned, states)))
	sum := over(y.size, &tensor{size: y.size, sources: []*tensor{scanned}, viewOf: scanned}, over(y.size, y))
	gate := op(b.row(m.Inner), part(both, b.row(m.Inner)))
	return view(b.product(b.Hidden, op(b.row(m.Inner), gate, sum)))
}

// Mamba2 is Mamba 2's mixer (src/models/graph-context-mamba.cpp, build_mamba2_layer).
type Mamba2 struct {
	Inner, State, Heads, Groups, Kernel int
	Unnormed                            bool
}

func (m Mamba2) build(b *builder, x *tensor) *tensor {
	mixed := m.Inner + 2*m.Groups*m.State
	all := view(b.product(m.Inner+mixed+m.Heads, x))
	y := convolved(b, Convolution{mixed, m.Kernel}, part(all, b.row(mixed)))
	y = over(y.size, over(y.size, y))
	step := op(b.row(m.Heads), part(all, b.row(m.Heads)))
	step = over(step.size, step)
	states := perSequence(b, m.Inner, m.State)
	inner := part(y, b.row(m.Inner))
	scanned := op(b.row(m.Inner)+states*int64(1+b.s.Drafts), inner, step, part(y, b.row(m.Groups*m.State)), part(y, b.row(m.Groups*m.State)), b.states)
	b.expand(store(part(scanned, states)))
	sum := over(inner.size, &tensor{size: inner.size, sources: []*tensor{scanned}, viewOf: scanned}, over(inner.size, inner))
	gate := op(b.row(m.Inner), part(all, b.row(m.Inner)))
	gated := view(op(b.row(m.Inner), gate, sum))
	if !m.Unnormed {
		gated = view(over(gated.size, over(gated.size, gated)))
	}
	return b.product(b.Hidden, gated)
}

// ShortConvolution is LFM2's (src/models/lfm2.cpp).
type ShortConvolution struct{ Kernel int }

func (c ShortConvolution) build(b *builder, x *tensor) *tensor {
	all := b.product(3*b.Hidden, view(x))
	width := b.row(b.Hidden)
	gated := over(width, part(all, width), part(all, width))
	y := convolved(b, Convolution{b.Hidden, c.Kernel}, gated)
	return view(b.product(b.Hidden, over(width, part(all, width), y)))
}

// DeltaNet is a gated delta net (src/models/delta-net-base.cpp).
type DeltaNet struct {
	KeyHeads, ValueHeads, KeySize, ValueSize, Kernel int
	Repeated                                         bool // keys and queries are repeated for all heads of values (Qwen3-Next)
}

func (d DeltaNet) build(b *builder, x *tensor) *tensor {
	keys, values := d.KeyHeads*d.KeySize, d.ValueHeads*d.ValueSize
	states := perSequence(b, values, d.KeySize)
	b.expand(x)
	mixed := b.product(2*keys+values, x)
	state := op(states, b.states)
	y := convolved(b, Convolution{2*keys + values, d.Kernel}, view(mixed), state)
	y = over(y.size, y)
	unit := func() *tensor {
		t := over(b.row(keys), part(y, b.row(keys)))
		t = over(t.size, t)
		if d.Repeated && d.ValueHeads > d.KeyHeads {
			t = view(op(b.row(d.ValueHeads*d.KeySize), view(t)))
		}
		return t
	}
	q, k := unit(), unit()
	number := func() *tensor {
		t := b.product(d.ValueHeads, x)
		return over(t.size, view(t))
	}
	made := op(b.row(values)+states, q, k, part(y, b.row(values)), number(), number(), view(state))
	b.expand(store(part(made, states)))
	normed := over(b.row(values), &tensor{size: b.row(values), sources: []*tensor{made}, viewOf: made})
	normed = over(normed.size, normed)
	gate := b.product(values, x)
	return view(b.product(b.Hidden, view(over(normed.size, normed, over(gate.size, view(gate))))))
}

// KimiDelta is Kimi's delta attention (src/models/kimi-linear.cpp).
type KimiDelta struct{ Heads, Size, Kernel int }

func (d KimiDelta) build(b *builder, x *tensor) *tensor {
	wide := d.Heads * d.Size
	row, kept, states := b.row(wide), perSequence(b, wide, d.Kernel-1), perSequence(b, wide, d.Size)
	b.expand(x)
	last := op(3*kept, b.states)
	b.expand(last)
	var joined [3]*tensor
	for i := range joined {
		joined[i] = op(row+kept, part(last, kept), view(b.product(wide, x)))
		b.expand(store(part(joined[i], kept)))
	}
	state := op(states, b.states)
	b.expand(state)
	convolved := func(i int) *tensor { return over(row, view(op(row, joined[i]))) }
	unit := func(i int) *tensor { return over(row, over(row, view(convolved(i)))) }
	q, k, v := unit(0), unit(1), view(convolved(2))
	decay := b.product(wide, b.product(d.Size, x))
	decay = over(row, view(over(row, over(row, decay))))
	beta := b.product(d.Heads, x)
	made := op(row+states, q, k, v, view(decay), over(beta.size, view(beta)), view(state))
	b.expand(store(part(made, states)))
	y := op(row, part(made, row))
	normed := over(row, over(row, view(y)))
	gate := b.product(wide, b.product(d.Size, view(x)))
	return b.product(b.Hidden, op(row, over(row, normed, over(row, view(gate)))))
}
