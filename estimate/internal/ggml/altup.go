package ggml

// AltUp are the alternating updates of Gemma 3n (src/models/gemma3n.cpp): several streams, of which a block computes one and
// predicts the others.
type AltUp struct {
	Inputs int // streams; 0 means that there are no alternating updates
	Rank   int // of the path beside attention
	Inner  int // width of the blocks' own embeddings
}

// magnitude returns the length of each row of x.
func magnitude(x *tensor, rows int64) *tensor {
	sum := op(rows, op(x.size, x))
	return over(rows, sum)
}

// spread returns the streams that the first block reads.
func (u AltUp) spread(b *builder, x *tensor) *tensor {
	one, others := b.row(b.Hidden), b.row((u.Inputs-1)*b.Hidden)
	made := op(others, op(others, x))
	scaled := over(others, made, magnitude(x, b.row(1)))
	joined := op(one+others, x, over(others, scaled, magnitude(made, b.row(u.Inputs-1))))
	b.expand(joined)
	return joined
}

// routed returns the coefficients that a stream gives.
func (u AltUp) routed(b *builder, x *tensor, width int) *tensor {
	y := over(x.size, b.normed(x))
	modes := b.product(u.Inputs, y)
	return b.product(width, over(modes.size, modes))
}

// block adds a block.
func (u AltUp) block(b *builder, of Block, x *tensor) *tensor {
	one, all := b.row(b.Hidden), b.row(u.Inputs*b.Hidden)
	turned := op(all, view(x))
	coefficients := u.routed(b, part(x, one), u.Inputs*u.Inputs)
	mixed := op(all, view(turned), view(coefficients))
	predictions := over(all, op(all, view(mixed)), x)
	active := part(predictions, one)
	b.expand(active)

	normed := b.normed(active)
	y := over(one, b.normed(of.Mixer.build(b, normed)), active)
	beside := b.normed(b.product(b.Hidden, b.product(u.Rank, normed)))
	y = over(one, over(one, y, over(one, beside, normed)))
	mlp := b.normed(of.MLP.build(b, b.normed(y)))
	y = over(one, mlp, y)

	innovation := op(all, over(one, y, active))
	corrections := u.routed(b, y, u.Inputs)
	corrected := over(all, over(all, innovation, op(corrections.size, view(corrections))), predictions)
	first := over(one, part(corrected, one))
	gate := b.product(u.Inner, first)
	own := b.product(b.Hidden, over(gate.size, over(gate.size, gate), part(b.own, b.row(u.Inner))))
	own = b.normed(own)
	others := over(all-one, part(corrected, all-one), own)
	return op(all, part(corrected, one), others)
}

// joined returns the one stream that the head reads.
func (u AltUp) joined(b *builder, x *tensor) *tensor {
	one, others := b.row(b.Hidden), b.row((u.Inputs-1)*b.Hidden)
	made := op(others, part(x, others))
	scaled := over(others, made, magnitude(part(x, one), b.row(1)))
	scaled = over(others, scaled, magnitude(made, b.row(u.Inputs-1)))
	sum := part(x, one)
	for range u.Inputs - 1 {
		sum = over(one, sum, part(scaled, one))
	}
	return over(one, sum)
}
