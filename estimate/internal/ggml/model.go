package ggml

// Model is what decides llama.cpp's graph of a decoder.
type Model struct {
	Vocab, Hidden int
	Embedded      int // width of the token embedding and of what the head reads; 0 means Hidden
	Blocks        []Block
	Scaled        bool  // a factor on the embedding
	Positions     int   // positions of a token; 0 means 1
	Predicts      bool  // the blocks predict further tokens from the last output and the next embedding (nextn)
	LateOutputs   bool  // the tokens whose logits are computed are chosen after the last block (Step 3.5)
	Capped        bool  // a tanh caps the logits
	PerLayer      int   // width of each block's own embedding (Gemma 4); 0 means none
	Deepstack     int   // blocks to whose output vectors of images are added, which come with the embedding (Qwen3-VL)
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
	NoNormsBefore bool // no norms come before them
	SecondNorm    bool // of a parallel block: the MLP has a norm of its own
	Sum           Sum  // of a parallel block
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
	Drafts     int  // states of recurrent layers that are kept besides the last ones
	ApartIndex bool // the scores of each head of an index are held, where a backend has no operation that sums them
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
	index   *indexInputs

	count    int     // of all blocks
	deep     *tensor // the embedding with vectors of images
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
// state that an earlier block of the kind found. Blocks with inputs of their own, as Index has, all count.
func representative(blocks []Block) []Block {
	last, seen, kept := map[Block]int{}, map[Block]int{}, []Block(nil)
	for i, b := range blocks {
		last[b] = i
	}
	for i, b := range blocks {
		l, latent := b.Mixer.(Latent)
		if seen[b]++; seen[b] <= 2 || last[b] == i || latent && l.Index.TopK > 0 {
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
	x := b.embedded()
	var ids *tensor
	for i, block := range b.Blocks {
		switch {
		case b.AltUp.Inputs > 1:
			x = b.AltUp.block(b, block, x)
			continue
		case i == len(b.Blocks)-1 && !b.LateOutputs:
			ids = b.input(b.bytes(4, b.s.Outputs))
		}
		if x = b.block(block, x, ids); i < b.Deepstack && ids == nil {
			x = over(x.size, x, part(b.deep, b.row(b.Hidden)))
		}
	}
	if b.AltUp.Inputs > 1 {
		x = op(b.bytes(4, b.Hidden, b.s.Outputs), b.AltUp.joined(b, x), b.input(b.bytes(4, b.s.Outputs)))
	}
	if b.LateOutputs {
		x = b.chosen(x, b.input(b.bytes(4, b.s.Outputs)))
	}
	x = b.normed(x)
	b.expand(x)
	x = op(b.bytes(4, b.Vocab, b.s.Outputs), x)
	if b.Capped {
		x = over(x.size, over(x.size, over(x.size, x)))
	}
	x.output = true
	b.expand(x)
}

// embedded returns what the first block reads.
func (b *builder) embedded() *tensor {
	width := b.Embedded
	if width == 0 {
		width = b.Hidden
	}
	x := b.input(b.row(width))
	if b.s.Host {
		if !b.Predicts {
			b.expand(b.input(b.row(width * (1 + b.Deepstack)))) // vectors in place of tokens, which always have a place
		}
		x = op(b.row(width), b.input(b.bytes(4, b.s.Batch)))
		if b.Deepstack > 0 {
			x = op(b.row(width*(1+b.Deepstack)), x)
		}
	} else if b.Deepstack > 0 {
		x = b.input(b.row(width * (1 + b.Deepstack)))
	}
	if b.Deepstack > 0 {
		b.deep = x
		x = part(x, b.row(width))
	}
	own := b.ownEmbeddings()
	if b.Scaled {
		x = over(x.size, x)
	}
	b.expand(x)
	if own != nil {
		projected := over(own.size, op(own.size, x))
		projected = over(own.size, over(own.size, view(projected)))
		b.own = op(own.size, view(over(own.size, over(own.size, projected, own))))
	}
	switch {
	case b.AltUp.Inputs > 1:
		return b.AltUp.spread(b, x)
	case b.Predicts:
		last := b.input(b.row(b.Hidden))
		b.expand(last)
		return b.product(b.Hidden, op(b.row(2*b.Hidden), b.normed(x), b.normed(last)))
	}
	return x
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
