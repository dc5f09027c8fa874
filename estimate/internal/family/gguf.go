package family

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// Header is the header of a GGUF file.
type Header interface {
	// Whole returns a number of the metadata, or without if the key is missing. A missing key is an
	// error if without is negative.
	Whole(key string, without int) (int, error)
	// Numbers returns an array of whole numbers or booleans, or a single one as an array; nil if
	// there is no such key.
	Numbers(key string) []int
	// Flag returns a boolean of the metadata, or without if the key is missing.
	Flag(key string, without bool) bool
	// Shape returns a tensor's shape, and false if there is no such tensor.
	Shape(tensor string) (alloc.Shape, bool)
	// Tokens returns the number of tokens of the tokenizer, or 0 if unknown.
	Tokens() int
}

// Metadata is what families read from a GGUF file. Like Config it keeps the first error.
type Metadata struct {
	Header
	architecture string
	err          error
}

// ReadGGUF returns the model of a GGUF file with this general.architecture. The error is ErrUnknown
// if no family has it, otherwise an *Error or one of the Header's.
//
// "llama" stands for Llama, Mistral and Mixtral. The tensors show whether there are biases and
// whether the head is tied. The keys are those of docs/gguf.md in ggml-org/ggml and of
// gguf-py/gguf/constants.py in llama.cpp.
func (t *Table) ReadGGUF(architecture string, h Header) (Model, error) {
	known, ok := t.ggufs[architecture]
	if !ok {
		return Model{Type: architecture}, ErrUnknown
	}
	a := Model{Type: architecture, Transformer: known.With}
	a.Family = known.family
	m := &Metadata{Header: h, architecture: architecture}
	m.sizes(&known.GGUF, &a)
	if known.Read != nil && m.err == nil {
		known.Read(m, &a)
	}
	if a.Vocab = cmp.Or(a.Vocab, min(h.Tokens(), LargestNumber)); a.Vocab == 0 {
		m.keep(&Error{Where: "metadata", Reason: "neither vocab_size nor the tokenizer's tokens give the size of the vocabulary"})
	}
	if m.err != nil {
		return Model{}, m.err
	}
	a.Tied = !m.has("output.weight")
	err := a.check()
	if known.Biases {
		err = errors.Join(err, m.biases(&a))
	}
	if err != nil {
		return Model{}, &Error{Err: err}
	}
	return a, nil
}

// sizes reads what most architectures have.
func (m *Metadata) sizes(g *GGUF, a *Model) {
	m.must(&a.Hidden, "embedding_length")
	m.must(&a.Blocks, "block_count")
	m.predicting(a)
	switch {
	case g.Mixer:
		a.Heads, a.KVHeads = 1, 1
	case g.Blocks:
		heads := m.must
		if g.Heads {
			heads = m.largest
		}
		heads(&a.Heads, "attention.head_count")
		m.largest(&a.FFN, "feed_forward_length")
		m.largest(&a.KVHeads, "attention.head_count_kv")
	default:
		m.must(&a.FFN, "feed_forward_length")
		m.must(&a.Heads, "attention.head_count")
		m.may(&a.KVHeads, "attention.head_count_kv")
	}
	m.may(&a.Longest, "context_length")
	m.may(&a.HeadSize, "attention.key_length")
	m.may(&a.Experts, "expert_count")
	m.may(&a.TopK, "expert_used_count")
	m.may(&a.ExpertFFN, "expert_feed_forward_length")
	m.may(&a.Vocab, "vocab_size")
	if g.Rotary {
		m.may(&a.RotaryDim, "rope.dimension_count")
	}
	if g.Window == 0 {
		return
	}
	if m.may(&a.Window, "attention.sliding_window"); a.Window > 0 {
		full := each(g.Window)
		a.mark(Windowed, func(block int) bool { return !full(block) })
	}
}

// predicting takes the blocks that predict further tokens, the last ones, from those of the model itself.
func (m *Metadata) predicting(a *Model) {
	n := 0
	if m.may(&n, "nextn_predict_layers"); n < a.Blocks && m.has(fmt.Sprintf("blk.%d.nextn.eh_proj.weight", a.Blocks-1)) {
		a.Predicting = n
		a.Blocks -= n
	}
}

// must reads a number of 1 or more.
func (m *Metadata) must(to *int, key string) { m.number(to, key, true) }

// may reads a number that may be missing; it is 0 then.
func (m *Metadata) may(to *int, key string) { m.number(to, key, false) }

func (m *Metadata) number(to *int, key string, required bool) {
	key = m.architecture + "." + key
	without := 0
	if required {
		without, *to = -1, 1
	}
	n, err := m.Whole(key, without)
	switch {
	case err != nil:
		m.keep(err)
	case n > LargestNumber || n == 0 && required:
		m.keep(&Error{Where: fmt.Sprintf("metadata key %q", key), Reason: fmt.Sprintf("%d is not a number from 1 to %d", n, LargestNumber)})
	default:
		*to = n
	}
}

// byBlock returns a number for each block. If the file does not have one for each it returns nil
// and keeps an error.
func (m *Metadata) byBlock(a *Model, key string) []int {
	key = m.architecture + "." + key
	all := m.Numbers(key)
	if len(all) == a.Blocks+a.Predicting {
		all = all[:a.Blocks]
	}
	if len(all) != a.Blocks {
		m.keep(&Error{Where: fmt.Sprintf("metadata key %q", key), Reason: fmt.Sprintf("%d numbers for %d blocks", len(all), a.Blocks)})
		return nil
	}
	return all
}

// largest reads the largest of the blocks' numbers, or the single number of all blocks.
func (m *Metadata) largest(to *int, key string) {
	if all := m.Numbers(m.architecture + "." + key); len(all) > 1 {
		*to = min(slices.Max(all), LargestNumber)
		return
	}
	m.must(to, key)
}

// withoutHeads marks the blocks without heads of keys and values as recurrent.
func (m *Metadata) withoutHeads(a *Model) {
	heads := m.byBlock(a, "attention.head_count_kv")
	a.mark(Recurrent, func(block int) bool { return block < len(heads) && heads[block] == 0 })
}

// keep keeps the first error.
func (m *Metadata) keep(err error) {
	if m.err == nil {
		m.err = err
	}
}

// has reports whether the file has a tensor.
func (m *Metadata) has(tensor string) bool {
	_, ok := m.Shape(tensor)
	return ok
}

// Rows returns the first dimension of a matrix, or 0 if there is no such matrix.
func (m *Metadata) Rows(tensor string) int {
	if shape, ok := m.Shape(tensor); ok && len(shape) == 2 {
		return min(shape[0], LargestNumber)
	}
	return 0
}

// biases sets which projections have biases, from the tensors.
func (m *Metadata) biases(a *Model) error {
	a.QKVBias, a.Bias = m.has("blk.0.attn_q.bias"), m.has("blk.0.attn_output.bias")
	if a.Experts == 0 && a.Bias != m.has("blk.0.ffn_up.bias") || a.Bias && !a.QKVBias {
		return fmt.Errorf("some projections of a block have biases and others have none: %w", ErrUnknown)
	}
	return nil
}

// headNorms sets the norms of queries and keys if there are tensors for them.
func (m *Metadata) headNorms(a *Model) {
	if m.has("blk.0.attn_q_norm.weight") {
		a.QKNorm = layer.NormHeads
	}
}

// packedBiases reads biases of projections that may be packed.
func packedBiases(m *Metadata, a *Model) {
	a.QKVBias = m.has("blk.0.attn_q.bias") || m.has("blk.0.attn_qkv.bias")
}

// LearnedPositions reads the number of learned positions.
func LearnedPositions(m *Metadata, a *Model) { m.must(&a.Positions, "context_length") }

// stillBeyondWindow calls Model.stillBeyondWindow; no key is needed for it.
func stillBeyondWindow(_ *Metadata, a *Model) { a.stillBeyondWindow() }

// unrotatedFourth marks every fourth layer as not rotating, and gives all others the window.
func unrotatedFourth(a *Model, window int) {
	a.Window = window
	fourth := each(4)
	a.mark(NoRotation, fourth)
	if window > 0 {
		a.mark(Windowed, func(block int) bool { return !fourth(block) })
	}
}

// GGUFCacheAlone returns what the metadata of an unknown architecture say about its keys and
// values. It returns false if they say too little.
func GGUFCacheAlone(architecture string, h Header) (Model, bool) {
	a := Model{Type: architecture}
	m := &Metadata{Header: h, architecture: architecture}
	shared := 0
	m.must(&a.Hidden, "embedding_length")
	m.must(&a.Blocks, "block_count")
	m.must(&a.Heads, "attention.head_count")
	m.may(&a.KVHeads, "attention.head_count_kv")
	m.may(&a.Longest, "context_length")
	m.may(&a.HeadSize, "attention.key_length")
	m.may(&shared, "attention.shared_kv_layers")
	return a, m.err == nil && a.check() == nil && a.borrow(shared) == nil
}
