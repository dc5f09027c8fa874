package family

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Server is llamacpp.Server.
type Server struct {
	Slots          string
	Batch          int
	FlashAttention bool
	GPULayers      int
	Split          []float64
	Projector      alloc.Bytes
}

// LlamaCpp holds the settings of llama.cpp that decide the size of its compute buffer.
type LlamaCpp struct {
	ContextLength  int  // tokens of all slots together, --ctx-size
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
	GPUs           int  // number of GPUs that share the layers; 0 means 1
}

// usualBatch is the default of llama.cpp's --ubatch-size.
const usualBatch = 512

// Serve returns what makes inference llama.cpp's, with keys and values as cache describes them and weights of these sizes.
func (c Transformer) Serve(s Server, cache setting.KVConfig, sizes setting.LayerSizes) (func(*setting.Config), error) {
	if s.Slots != "" && s.Slots != "unified" && s.Slots != "apart" {
		return nil, fmt.Errorf("estimate llama.cpp: Slots is %q: want unified or apart", s.Slots)
	}
	cells := s.Cells(cache)
	context := cells.ContextLength
	if s.Slots != "apart" && cells.Batch > 0 {
		context = min(context, setting.MaxField/cells.Batch) * cells.Batch
	}
	buffer, err := c.ComputeBuffer(LlamaCpp{ContextLength: context, Batch: s.Batch, FlashAttention: s.FlashAttention, GPUs: len(s.Split)})
	if err != nil {
		return nil, err
	}
	shares := slices.Clone(s.Split)
	return func(cfg *setting.Config) {
		cfg.Cache, cfg.Compute, cfg.Sizes, cfg.Shares, cfg.Projector = &cells, buffer, &sizes, shares, s.Projector
		if cfg.GpuLayers = nil; s.GPULayers != 0 {
			n := max(0, s.GPULayers)
			cfg.GpuLayers = &n
		}
	}, nil
}

// Cells returns the cache as llama.cpp keeps it: the tokens of a sequence are rounded up to 256, and
// layers with a window also have room for a batch (src/llama-kv-cache-iswa.cpp). A unified cache holds
// all sequences. States of recurrent layers are float32 whatever the type of keys and values
// (src/llama-memory-recurrent.cpp).
func (s Server) Cells(c setting.KVConfig) setting.KVConfig {
	const unit = 256
	round := func(n int) int { return (min(n, setting.MaxField-unit) + unit - 1) / unit * unit }
	if s.Slots == "unified" && c.Batch > 0 && c.Batch < setting.MaxField {
		all := func(n int) int { return min(n, setting.MaxField/c.Batch) * c.Batch }
		c.ContextLength, c.Window, c.Fixed, c.States, c.Batch = all(c.ContextLength), all(c.Window), all(c.Fixed), all(c.States), 1
	}
	c.ContextLength = round(c.ContextLength)
	if c.Window > 0 {
		c.Window = round(min(c.Window, setting.MaxField/2) + min(setting.Or(s.Batch, usualBatch), setting.MaxField/4))
	}
	c.FixedType, c.Prompt = alloc.Float32, 0
	return c
}

// ComputeBuffer returns what llama.cpp prints as the compute buffer of a GPU that has all layers:
// the most memory that its graph needs, in float32, at one of three moments.
//
// The head makes the logits of all tokens of a batch, (vocabulary + hidden) x batch. Attention that
// holds its scores needs heads x context x batch for them, and the mask and four tensors of the
// batch. The MLP needs both of its wide tensors, two narrow ones and the mask.
//
// Several GPUs work on four batches at once, and each holds all their inputs and masks
// (GGML_SCHED_MAX_COPIES in ggml/src/ggml-backend.cpp). docs/estimate.md compares the result with
// what llama.cpp printed. Releases since the middle of 2026 reserve the logits of fewer tokens and
// print less. The error says which number of the transformer or of l makes no sense.
func (c Transformer) ComputeBuffer(l LlamaCpp) (alloc.Bytes, error) {
	batch := min(setting.Or(l.Batch, usualBatch), l.ContextLength)
	switch {
	case c.Family.Encoder():
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: that of %v with these settings is not known", c.Family)
	case batch < 1 || l.ContextLength > setting.MaxField || c.Heads < 1 || c.Hidden < 1:
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: context length %d, batch %d, %d heads, hidden %d: want 1 or more", l.ContextLength, batch, c.Heads, c.Hidden)
	}
	tokens := func(width int64) int64 { return 4 * width * int64(batch) }
	hidden, query := int64(c.Hidden), int64(c.Heads)*int64(c.HeadWidth())
	queries := 2 * query // before and after rotation
	if c.packs() {
		queries = 2*query + 2*int64(setting.Or(c.KVHeads, c.Heads))*int64(c.HeadWidth()) // packed with keys and values
	}
	if c.Latent != nil {
		queries = latentQueries(c.Latent, int64(c.Heads))
	}
	mask := int64(l.ContextLength)
	if l.FlashAttention {
		mask += mask / 2 // its copy in float16
	}
	most := max(tokens(int64(c.Vocab)+hidden), tokens(c.wideFFN()+2*hidden+mask))
	if !l.FlashAttention {
		most = max(most, tokens(int64(c.Heads)*int64(l.ContextLength)+mask+2*hidden+queries))
	}
	if c.Latent != nil && l.FlashAttention { // its queries are wider than the other tensors of a block
		most = max(most, tokens(mask+2*hidden+queries))
	}
	if l.GPUs > 1 {
		most += 3 * tokens(2*hidden+mask)
	}
	if most < 0 || most > setting.MaxTotal {
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: it takes more than %v", alloc.Bytes(setting.MaxTotal))
	}
	return alloc.Bytes(most), nil
}

// latentQueries returns the width of what latent attention makes before its scores
// (src/models/deepseek2.cpp): the narrow projections, the queries, their rotating part, and what is
// multiplied. The latter is either queries, keys and values of all heads, or queries against the
// latent.
func latentQueries(a *layer.LatentAttention, heads int64) int64 {
	nope, rope, value, rank := int64(a.NopeSize), int64(a.RopeSize), int64(a.ValueSize), int64(a.KVRank)
	width := int64(a.QueryRank) + rank + rope + heads*(nope+2*rope)
	if a.Whole {
		return width + heads*(nope+rope+nope+value)
	}
	return width + heads*(rank+rank+rope)
}

// wideFFN returns the width of the middle of an MLP, or of a token's experts together.
func (c Transformer) wideFFN() int64 {
	ffn := int64(setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField)))
	if c.Experts > 0 {
		ffn = max(int64(setting.Or(c.TopK, 2))*int64(setting.Or(c.ExpertFFN, int(ffn))), int64(c.SharedFFN))
	}
	if _, ungated := c.style().mlp(c).(layer.MLP); ungated && c.Experts == 0 {
		return ffn
	}
	return 2 * ffn // with its gate
}

// packs reports whether one projection makes queries, keys and values.
func (c Transformer) packs() bool { return c.attention(c.style(), 0).Packed }
