package ggml

// Model is what decides llama.cpp's graph of a decoder.
type Model struct {
	Vocab, Hidden int
	Embedded      int // width of the token embedding and of what the head reads; 0 means Hidden
	Blocks        []Block
	Scaled        bool  // a factor on the embedding
	Positions     int   // positions of a token; 0 means 1
	NormsAll      bool  // the last norm reads all tokens, and not those alone whose logits are needed
	Capped        bool  // a tanh caps the logits
	PerLayer      int   // width of each block's own embedding (Gemma 4); 0 means none
	AltUp         AltUp // Gemma 3n
	LayerNorm     bool  // norms are layer norms, which ggml does not compute in place

	// Values is the width of the values of the block that has the widest. Without flash attention, llama.cpp stores those of
	// all blocks with as many indexes (src/llama-kv-cache.cpp, build_input_v_idxs).
	Values int
}

// Block is a block of a decoder.
type Block struct {
	Mixer  Part // attention or a recurrence; nil means none
	Beside Part // a recurrence beside attention (Falcon-H1); nil means none
	MLP    Part // nil means none

	Parallel      bool // the mixer and the MLP read the same norm
	NormsAfter    bool // norms follow the parts
	NoNormsBefore bool // no norms come before them
	SecondNorm    bool // of a parallel block: the MLP has a norm of its own
	Sum           Sum  // of a parallel block
	Multiplied    bool // a factor on each part's output
	ResidualFirst bool // x is the first term of the sums, so that these take its place
}

// Sum is the order in which a parallel block adds up.
type Sum uint8

// The orders: the first two terms, and then the third.
const (
	MLPInputMixer Sum = iota
	MLPMixerInput
	MixerMLPInput
)

// Part is a part of a block that reads x, of Hidden width, and returns as much.
type Part interface {
	build(b *builder, x *tensor) *tensor
}

// Setting is how a model is served.
type Setting struct {
	Cells, WindowCells int // tokens that the keys and values of a sequence have room for, in blocks without and with a window
	Streams            int // caches of their own: 1 where all sequences share one
	Sequences          int
	Batch              int // tokens that are computed at once, at most Cells times Streams
	Outputs            int // of these, tokens whose logits are computed
	Flash              bool
	RotatedKeys        bool // keys are rotated before they are quantized
	RotatedValues      bool
	// WideMask is whether the mask is made in float32 and copied to float16 for flash attention, as in releases until early
	// 2026 (b8179 has it, b10068 has not).
	WideMask   bool
	Copied     bool // keys and values are stored by copies and not by indexes, as in releases before August 2025
	ApartGates bool // a gate's activation and its product are two operations, as in releases before July 2025
	ApartHeads bool // packed queries, keys and values are copied, as in releases before September 2025
	Host       bool // the embedding is computed in this buffer too, as where no GPU is used
}

// Alignments of tensors in buffers of CUDA (ggml/src/ggml-cuda/ggml-cuda.cu) and of the CPU (ggml/src/ggml-backend.cpp).
const (
	alignmentOfCUDA = 128
	alignmentOfHost = 32
)

// builder builds a graph.
type builder struct {
	graph
	Model
	s       Setting
	masks   [2]*tensor // without and with a window
	indexes [2][2]*tensor
	turns   map[turn]*tensor
	pos     *tensor
	states  *tensor // the numbers of the sequences' states

	count    int     // of all blocks
	own      *tensor // the blocks' own embeddings
	overflow bool    // a size is beyond any memory
}

// beyond is more memory than any device has.
const beyond = 1 << 50

// bytes returns a number of elements of this size.
func (b *builder) bytes(size int, factors ...int) int64 {
	n := int64(size)
	for _, f := range factors {
		if f <= 0 {
			return 0
		}
		if n > beyond/int64(f) {
			b.overflow = true
			return beyond
		}
		n *= int64(f)
	}
	return n
}

// BufferSize returns the size of the buffer for a model's graph, for the batch that needs most, in bytes
// (src/llama-context.cpp, llama_context::sched_reserve). It returns false if it is more than an int64 holds.
func BufferSize(m Model, s Setting) (bytes int64, ok bool) {
	b := &builder{Model: m, s: s, turns: map[turn]*tensor{}, states: &tensor{size: 4 * int64(s.Sequences)}}
	b.Blocks, b.count = representative(m.Blocks), len(m.Blocks)
	b.pos = b.input(b.bytes(4, s.Batch, max(1, m.Positions)))
	b.build()
	alignment := int64(alignmentOfCUDA)
	if s.Host {
		alignment = alignmentOfHost
	}
	bytes = b.size(alignment)
	return bytes, !b.overflow
}

// representative returns the blocks without those between the second and the last of a kind, at which the buffer is in the
// state that an earlier block of the kind found.
func representative(blocks []Block) []Block {
	last, seen, kept := map[Block]int{}, map[Block]int{}, []Block(nil)
	for i, b := range blocks {
		last[b] = i
	}
	for i, b := range blocks {
		if seen[b]++; seen[b] <= 2 || last[b] == i {
			kept = append(kept, b)
		}
	}
	return kept
}

// row returns the size of a tensor of float32 with a row of this width for each token.
func (b *builder) row(width int) int64 { return b.bytes(4, width, b.s.Batch) }

// product returns the product of x with a weight.
func (b *builder) product(width int, x *tensor) *tensor { return op(b.row(width), x) }

// normed returns the norm of x, with its factor.
func (b *builder) normed(x *tensor) *tensor {
	if b.LayerNorm {
		return over(x.size, op(x.size, x))
	}
	return over(x.size, over(x.size, x))
}

// mask returns the mask of blocks with or without a window, which all of them share.
func (b *builder) mask(windowed bool) *tensor {
	i, cells := 0, b.s.Cells
	if windowed {
		i, cells = 1, b.s.WindowCells
	}
	if b.masks[i] == nil {
		narrow, wide := b.bytes(2, cells, b.s.Batch), b.bytes(4, cells, b.s.Batch) // a row for each token, of its own stream's cells
		switch {
		case b.s.Flash && b.s.WideMask:
			b.masks[i] = op(narrow, b.input(wide))
		case b.s.Flash:
			b.masks[i] = b.input(narrow)
		default:
			b.masks[i] = b.input(wide)
		}
	}
	return b.masks[i]
}

// indexesOf returns where keys and values are stored.
func (b *builder) indexesOf(windowed bool) (keys, values *tensor) {
	i := 0
	if windowed {
		i = 1
	}
	if b.indexes[i][0] == nil {
		each := 1
		if !b.s.Flash {
			each = b.Values
		}
		if b.s.Copied {
			return &tensor{outside: true}, &tensor{outside: true}
		}
		b.indexes[i] = [2]*tensor{b.input(b.bytes(8, b.s.Batch)), b.input(b.bytes(8, b.s.Batch, each))}
	}
	return b.indexes[i][0], b.indexes[i][1]
}

// build builds the graph up to the logits.
func (b *builder) build() {
	embedded := b.Embedded
	if embedded == 0 {
		embedded = b.Hidden
	}
	x := b.input(b.row(embedded))
	if b.s.Host {
		b.expand(b.input(b.row(embedded))) // vectors in place of tokens, which always have a place
		x = op(b.row(embedded), b.input(b.bytes(4, b.s.Batch)))
	}
	chosen := b.ownEmbeddings()
	if b.Scaled {
		x = over(x.size, x)
	}
	b.expand(x)
	if b.PerLayer > 0 {
		projected := over(chosen.size, op(chosen.size, x))
		projected = over(chosen.size, over(chosen.size, view(projected)))
		b.own = op(chosen.size, view(over(chosen.size, over(chosen.size, projected, chosen))))
	}
	if b.AltUp.Inputs > 1 {
		x = b.AltUp.spread(b, x)
	}
	var ids *tensor
	for i, block := range b.Blocks {
		if b.AltUp.Inputs > 1 {
			x = b.AltUp.block(b, block, x)
			continue
		}
		if i == len(b.Blocks)-1 && !b.NormsAll {
			ids = b.input(b.bytes(4, b.s.Outputs))
		}
		x = b.block(block, x, ids)
	}
	if b.AltUp.Inputs > 1 {
		x = b.AltUp.joined(b, x)
		x = op(b.bytes(4, b.Hidden, b.s.Outputs), x, b.input(b.bytes(4, b.s.Outputs)))
	}
	x = b.normed(x)
	if b.NormsAll {
		x = op(b.bytes(4, b.Hidden, b.s.Outputs), x, b.input(b.bytes(4, b.s.Outputs)))
	}
	b.expand(x)
	x = op(b.bytes(4, b.Vocab, b.s.Outputs), x)
	if b.Capped {
		x = over(x.size, over(x.size, over(x.size, x)))
	}
	x.output = true
	b.expand(x)
}

// ownEmbeddings returns the blocks' own embeddings of the tokens, or nil if they have none.
func (b *builder) ownEmbeddings() *tensor {
	if b.PerLayer == 0 {
		return nil
	}
	all := b.input(b.row(b.PerLayer * b.count))
	if b.s.Host {
		rows := op(all.size, b.input(b.bytes(4, b.s.Batch)))
		all = over(all.size, view(rows))
	}
	b.expand(all)
	return all
}

// block adds a block, of which the tokens alone go on that ids names.
func (b *builder) block(of Block, x, ids *tensor) *tensor {
	chosen := func(t *tensor) *tensor {
		if ids == nil {
			return t
		}
		return op(t.size/int64(b.s.Batch)*int64(b.s.Outputs), t, ids)
	}
	before := func(x *tensor) *tensor {
		if of.NoNormsBefore {
			return x
		}
		return b.normed(x)
	}
	after := func(y *tensor) *tensor {
		if of.NormsAfter {
			y = b.normed(y)
		}
		if of.Multiplied {
			y = over(y.size, y)
		}
		return y
	}
	add := func(y, x *tensor) *tensor {
		if of.ResidualFirst {
			y, x = x, y
		}
		return over(x.size, y, x)
	}
	if of.Parallel {
		normed := before(x)
		mixed := of.Mixer.build(b, normed)
		if of.SecondNorm {
			normed = before(x)
		}
		if ids != nil {
			mixed, normed, x = chosen(mixed), chosen(normed), chosen(x)
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
	if of.Mixer != nil {
		y := of.Mixer.build(b, before(x))
		if of.Beside != nil {
			y = over(y.size, y, of.Beside.build(b, before(x)))
		}
		y, x = after(chosen(y)), chosen(x)
		x = add(y, x)
	} else if ids != nil {
		x = chosen(x)
	}
	if of.MLP != nil {
		if ids != nil {
			defer b.outputs()()
		}
		y := after(of.MLP.build(b, before(x)))
		x = add(y, x)
	}
	if b.own != nil {
		gate := b.product(b.PerLayer, x)
		own := part(b.own, b.row(b.PerLayer))
		y := b.product(b.Hidden, over(gate.size, over(gate.size, gate), own))
		y = over(y.size, x, b.normed(y))
		x = over(y.size, y)
	}
	return x
}

// outputs makes the tokens of the batch those whose logits are computed, and returns a function that makes them all again.
func (b *builder) outputs() func() {
	all := b.s.Batch
	b.s.Batch = b.s.Outputs
	return func() { b.s.Batch = all }
}
