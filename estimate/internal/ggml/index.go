package ggml

// Index chooses the tokens that attention reads (src/models/deepseek32.cpp). Keys of its own are stored beside the latents.
type Index struct {
	Heads, Size int
	TopK        int // 0 means that attention reads all tokens
}

// indexInputs are what the indexes of all blocks share.
type indexInputs struct{ turn, indexes, mask *tensor }

// inputsOf returns what the indexes of all blocks share.
func (x Index) inputsOf(b *builder) *indexInputs {
	if b.index == nil {
		element := 2
		if b.s.ApartIndex {
			element = 4
		}
		b.index = &indexInputs{b.input(b.bytes(4, x.Size, x.Size)), b.input(b.bytes(8, b.s.Batch)), b.input(b.bytes(element, b.s.Cells, b.s.Batch))}
	}
	return b.index
}

// selected returns the tokens with the best scores, for each token of the batch, or nil if attention reads all tokens; of is
// what attention reads, and q that from which the queries are made.
func (x Index) selected(b *builder, rotating int, of, q *tensor) *tensor {
	if x.TopK == 0 {
		return nil
	}
	shared := x.inputsOf(b)
	turned := func(t *tensor, heads int) *tensor {
		rotated := over(b.row(heads*rotating), part(t, b.row(heads*rotating)), b.pos)
		t = op(t.size, rotated, part(t, t.size-rotated.size))
		return op(t.size, shared.turn, t)
	}
	queries := turned(b.product(x.Heads*x.Size, q), x.Heads)
	keys := b.product(x.Size, of)
	keys = over(keys.size, over(keys.size, op(keys.size, keys))) // a layer norm
	b.expand(store(view(turned(keys, 1)), shared.indexes))
	weights := view(b.product(x.Heads, of))
	weights = over(weights.size, weights)
	size := b.bytes(4, b.s.Cells, b.s.Batch)
	scores := op(size, view(queries), weights, shared.mask)
	if b.s.ApartIndex {
		each := b.bytes(4, b.s.Cells, b.s.Batch, x.Heads)
		scores = op(each, view(op(each, view(queries))))
		scores = over(each, over(each, scores), weights)
		scores = over(size, op(size, view(op(size, scores))), shared.mask)
	}
	best := b.bytes(4, min(x.TopK, b.s.Cells), b.s.Batch)
	return op(best, op(best, scores))
}

// masked returns a mask that leaves the selected tokens alone. Its zeros are made of a tensor of each block that is there from
// the beginning.
func (x Index) masked(b *builder, mask, selected *tensor) *tensor {
	all := op(mask.size, mask)
	zeros := over(selected.size, b.input(selected.size))
	chosen := &tensor{size: all.size, sources: []*tensor{zeros, view(selected), view(all)}, viewOf: all}
	return over(mask.size, view(chosen), mask)
}
