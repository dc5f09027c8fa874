package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LlamaCpp is how llama.cpp serves a transformer, as far as its compute buffer goes.
type LlamaCpp struct {
	Context        int  // tokens of all slots together, --ctx-size
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
}

// usualBatch is llama.cpp's --ubatch-size.
const usualBatch = 512

// ComputeBuffer returns what llama.cpp prints as the compute buffer of a GPU that has all layers:
// the memory that its graph takes at the most, in float32, of these three moments. The head makes
// the logits of all tokens of a batch, (vocabulary + hidden) x batch. Attention that holds its
// scores has them of all heads, heads x context x batch, and beside them the mask and four
// tensors of the batch. The MLP has both of its wide tensors, and two narrow ones.
// The page docs/estimate.md has it beside what was printed. Releases since the middle of 2026
// reserve the logits of fewer tokens and print less. Models with latent attention are not known.
// The error says what of the transformer or of l cannot be.
func (c Transformer) ComputeBuffer(l LlamaCpp) (alloc.Bytes, error) {
	batch := min(or(l.Batch, usualBatch), l.Context)
	switch {
	case c.Latent != nil || c.Family.Encoder():
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: that of %v with these settings is not known", c.Family)
	case batch < 1 || l.Context > maxField || c.Heads < 1 || c.Hidden < 1:
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: context %d, batch %d, %d heads, hidden %d: want 1 or more", l.Context, batch, c.Heads, c.Hidden)
	}
	tokens := func(width int64) int64 { return 4 * width * int64(batch) }
	hidden, query := int64(c.Hidden), int64(c.Heads)*int64(c.headSize())
	queries := 2 * query // before and after rotation
	if c.packs() {
		queries = 2*query + 2*int64(or(c.KVHeads, c.Heads))*int64(c.headSize()) // packed with keys and values
	}
	mask := int64(l.Context)
	most := max(tokens(int64(c.Vocab)+hidden), tokens(c.wideFFN()+2*hidden+mask))
	if !l.FlashAttention {
		most = max(most, tokens(int64(c.Heads)*int64(l.Context)+mask+2*hidden+queries))
	}
	if most < 0 || most > maxTotal {
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: it takes more than %v", alloc.Bytes(maxTotal))
	}
	return alloc.Bytes(most), nil
}

// wideFFN is the width of what an MLP or the experts of a token hold in the middle.
func (c Transformer) wideFFN() int64 {
	ffn := int64(or(c.FFN, 4*min(c.Hidden, maxField)))
	if c.Experts > 0 {
		ffn = max(int64(or(c.TopK, 2))*int64(or(c.ExpertFFN, int(ffn))), int64(c.SharedFFN))
	}
	if c.Family == GPT2 {
		return ffn
	}
	if _, ungated := c.style().mlp(c).(MLP); ungated && c.Experts == 0 {
		return ffn
	}
	return 2 * ffn // beside its gate
}

// packs reports whether queries, keys and values come of one projection.
func (c Transformer) packs() bool { return c.Family == GPT2 || c.attention(c.style(), 0).Packed }

// ComputedIn makes inference that of llama.cpp, with a compute buffer of so many bytes in
// place of what PyTorch's operations and allocator take.
func ComputedIn(buffer alloc.Bytes) Option {
	return func(c *config) { c.compute = max(0, buffer) }
}

// llamaCpp puts the compute buffer in place of PyTorch's activations.
func (r *Report) llamaCpp(cfg *config) {
	m := &r.Inference
	m.Input, m.Transient, m.Band = 0, cfg.compute, llamaCppBand
	m.close("llama.cpp's compute buffer")
	context := cfg.machine.context()
	all := within(m.Peak, m.Band, 0)
	m.Footprint = Footprint{Allocated: all, Reserved: all, Context: context, Device: all.plus(context), Needed: all.plus(context)}
	r.Notes = append(r.Notes, "inference is that of llama.cpp, all layers on the device, and the token embedding too, which it may leave to the CPU")
}

// llamaCppBand is that of weights, cache and compute buffer together: the first two are exact, but
// for an embedding that stays on the CPU.
var llamaCppBand = Band{Below: 0.12, Above: 0.02}

// ModelBuffer returns what llama.cpp prints as the model buffer of a GPU that has all layers: the
// weights in the mixture, but for the table of the token embedding, which stays in the memory
// of the CPU unless it is the head's too (src/llama-model.cpp, load_tensors). The page
// docs/estimate.md has it beside what was printed. The error is that of Model for layers that are not valid.
func (c Transformer) ModelBuffer(q Quantization) (alloc.Bytes, error) {
	stored, err := q.Stored(c.Layers())
	if err != nil || c.Tied {
		return stored.Bytes, err
	}
	table := alloc.Shape{c.Vocab, or(c.EmbedDim, c.Hidden)}
	return stored.Bytes - q.base.hold(FLOPs(table...), table), nil
}
