// Package llamacpp estimates what llama.cpp, and what is built on it, takes of a GPU: weights in its
// quantizations, the layers that are on the GPU, its compute buffer. Package estimate
// computes the rest: llamacpp's options turn the inference of its Model into llama.cpp's.
//
//	m, err := zoo.ByName("llama-3-8b")
//	buffer, err := m.ComputeBuffer(llamacpp.Server{ContextLength: 8192, FlashAttention: true})
//	q, r, ok, err := llamacpp.BestQuantization(m.Layers, 8*alloc.GiB, llamacpp.ComputedIn(buffer), estimate.Tokens(1, 512))
//
// It reads no files: package checkpoint reads GGUF. All functions may be called from several goroutines.
package llamacpp

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Server says how llama.cpp serves a transformer: the settings that decide the size of its compute
// buffer.
type Server struct {
	// ContextLength counts the tokens of all slots together, --ctx-size. If each slot has its own
	// cache, as in releases since July 2025 without --kv-unified, the tokens of one slot are
	// enough.
	ContextLength  int
	Unified        bool // the slots share one cache, --kv-unified
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
	GPUs           int  // that have some of the layers each; 0 means 1
}

// usualBatch is llama.cpp's --ubatch-size.
const usualBatch = 512

// Cells returns the cache as llama.cpp keeps it: the tokens of a sequence are rounded up to 256,
// and layers with a window also have room for a batch (src/llama-kv-cache-iswa.cpp). A Unified
// cache holds all sequences. States of recurrent layers are float32 whatever the type of keys and
// values (src/llama-memory-recurrent.cpp).
func (l Server) Cells(c estimate.KVConfig) estimate.KVConfig {
	const unit = 256
	round := func(n int) int { return (min(n, setting.MaxField-unit) + unit - 1) / unit * unit }
	if l.Unified && c.Batch > 0 && c.Batch < setting.MaxField {
		all := func(n int) int { return min(n, setting.MaxField/c.Batch) * c.Batch }
		c.ContextLength, c.Window, c.Fixed, c.Batch = all(c.ContextLength), all(c.Window), all(c.Fixed), 1
	}
	c.ContextLength = round(c.ContextLength)
	if c.Window > 0 {
		c.Window = round(min(c.Window, setting.MaxField/2) + min(setting.Or(l.Batch, usualBatch), setting.MaxField/4))
	}
	c.FixedType = alloc.Float32
	return c
}

func option(f func(*setting.Config)) estimate.Option { return setting.Option(f).(estimate.Option) }

// ComputedIn makes inference llama.cpp's: a compute buffer of this size replaces the memory of
// PyTorch's operations and its allocator. The report has no Footprint of training then.
func ComputedIn(buffer alloc.Bytes) estimate.Option {
	return option(func(c *setting.Config) { c.Compute = buffer })
}

// StoredIn gives inference with ComputedIn the sizes of the weights; the embeddings are in the
// memory of the CPU. There, it replaces the option Stored.
func StoredIn(s Sizes) estimate.Option {
	return option(func(c *setting.Config) { c.Sizes = (*setting.LayerSizes)(&s) })
}

// GPULayers says how many of the layers of StoredIn a GPU holds, with their keys and values.
// Without it, the GPU holds all. Layers with a window and recurrent layers are taken to be on the
// GPU in the same proportion as all others. Memory.Host has the rest.
func GPULayers(n int) estimate.Option { return option(func(c *setting.Config) { c.GpuLayers = &n }) }

// SplitOver divides the layers of GPULayers among several GPUs by these proportions, as llama.cpp's
// --tensor-split does. The report is then about the one that needs most.
func SplitOver(proportions ...float64) estimate.Option {
	return option(func(c *setting.Config) { c.Shares = slices.Clone(proportions) })
}

// Projector adds the weights of the part that turns images into tokens, llama.cpp's --mmproj, to
// inference with ComputedIn. All of it is on the GPU.
func Projector(weights alloc.Bytes) estimate.Option {
	return option(func(c *setting.Config) { c.Projector = weights })
}
