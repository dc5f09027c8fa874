package family

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/ggml"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Server is llamacpp.Server.
type Server struct {
	Slots          string
	Batch          int
	FlashAttention bool
	Auto           bool
	Backend        string
	Build          int
	Outputs        int
	GPULayers      int
	Split          []float64
	Projector      alloc.Bytes
	Drafts         int
	Predicts       bool
	Draft          alloc.Bytes
}

// LlamaCpp holds the settings of llama.cpp that decide the size of its compute buffer.
type LlamaCpp struct {
	ContextLength  int  // tokens of all sequences together
	Windowed       int  // tokens that layers with a window have room for, of all sequences together; 0 means ContextLength
	Slots          int  // sequences; 0 means 1
	Unified        bool // the sequences share one cache
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	Outputs        int  // of these, tokens whose logits are computed; 0 means all
	FlashAttention bool // scores are not held
	Build          int  // of llama.cpp, such as 8179; 0 means the newest
	GPUs           int  // number of GPUs that share the layers; 0 means 1
	Host           bool // there is no GPU

	RotatedKeys, RotatedValues bool // they are quantized

	ApartIndex bool // the backend has no operation that sums the scores of an indexer's heads

	Drafts   int  // states of recurrent layers that are kept besides the last ones
	Predicts bool // it is the buffer of the blocks that predict
}

// Builds of llama.cpp from which on the compute buffer is another. The first is between 8179 and 10068.
const (
	fusedGates  = 5780 // pull request 14158
	byIndexes   = 6139 // pull request 14285, by default
	packedViews = 6413 // pull request 15662
	narrowMask  = 9000
)

// before reports whether the build is one before this.
func (l LlamaCpp) before(build int) bool { return l.Build > 0 && l.Build < build }

// maxDrafts is the most tokens that can be drafted at once: far more than any program drafts.
const maxDrafts = 1024

// usualBatch is the default of llama.cpp's --ubatch-size.
const usualBatch = 512

// Serve returns what makes inference llama.cpp's, with keys and values as cache describes them and weights of these sizes.
func (c Transformer) Serve(s Server, cache setting.KVConfig, sizes setting.LayerSizes) (func(*setting.Config), error) {
	if s.Slots != "" && s.Slots != "unified" && s.Slots != "apart" {
		return nil, fmt.Errorf("estimate llama.cpp: Slots is %q: want unified or apart", s.Slots)
	}
	if !slices.Contains(backends, s.Backend) {
		return nil, fmt.Errorf("estimate llama.cpp: Backend is %q: want one of %q", s.Backend, backends)
	}
	if kernel := kernelOf(c); kernel > 0 { // of the convolution's last inputs, those that the next token needs
		cache.Fixed = cache.Fixed / kernel * (kernel - 1)
	}
	if s.Drafts < 0 || s.Drafts > maxDrafts {
		return nil, fmt.Errorf("estimate llama.cpp: %d Drafts: want 0 to %d", s.Drafts, maxDrafts)
	}
	if s.Predicts && c.Predicting == 0 {
		return nil, fmt.Errorf("estimate llama.cpp: the model has no blocks that predict further tokens, which Predicts is about")
	}
	if s.Predicts && (hasIndexer(c) || c.Family == Step35) { // their cache and their heads are of another kind
		return nil, fmt.Errorf("estimate llama.cpp: what the blocks that predict further tokens take in a %v model is not known: leave out Predicts", c.Family)
	}
	if rollsBack(c) {
		cache.Fixed, cache.States = setting.Product(cache.Fixed, s.Drafts+1), setting.Product(cache.States, s.Drafts+1)
	}
	if s.Predicts {
		cache.Layers += c.Predicting
		if cache.Window > 0 {
			cache.Full += c.Predicting
		}
	}
	cells := s.Cells(cache)
	buffer, err := bufferOf(c, s, cache.Batch, cells)
	if err != nil {
		return nil, err
	}
	if s.Backend == onHost { // the head reads the embedding's own copy
		sizes.Output, sizes.Input, sizes.Tied = sizes.Output+sizes.Input-sizes.Tied, 0, 0
		sizes.PerLayer = 0
	}
	shares := slices.Clone(s.Split)
	return func(cfg *setting.Config) {
		cfg.Cache, cfg.Compute, cfg.Buffer, cfg.Sizes, cfg.Shares, cfg.Projector, cfg.Draft = &cells, buffer.Bytes, buffer, &sizes, shares, s.Projector, s.Draft
		if cfg.GpuLayers = nil; s.GPULayers != 0 {
			n := max(0, s.GPULayers)
			cfg.GpuLayers = &n
		}
	}, nil
}

// backends are ggml's, and "" for one that is not known.
var backends = []string{"", onCUDA, "vulkan", "metal", onHost}

const onHost, onCUDA = "cpu", "cuda"

// headsOfCUDA are the sizes of heads for which CUDA has kernels of flash attention, so that "auto" turns it on
// (ggml/src/ggml-cuda/fattn.cu, ggml_cuda_get_best_fattn_kernel); 576 is that of DeepSeek's latents.
var headsOfCUDA = []int{40, 64, 72, 80, 96, 112, 128, 256, 576}

// surelyFlash reports whether flash attention that llama.cpp decides on is on for certain.
func surelyFlash(c Transformer, s Server) bool {
	heads := []int{c.HeadWidth()}
	if c.Latent != nil && !c.Latent.Whole {
		heads[0] = c.Latent.KVRank + c.Latent.RopeSize
	}
	if own := c.Family.OrLlama().fullHeads; own != nil {
		_, size := own(c)
		heads = append(heads, size)
	}
	return s.Backend == onCUDA && !slices.ContainsFunc(heads, func(n int) bool { return !slices.Contains(headsOfCUDA, n) })
}

// The shares of a compute buffer that other orders of the operations, which Vulkan and Metal choose by themselves
// (ggml_backend_graph_optimize), were measured to take off or to add: with Vulkan and the models of contrib/llama.
const lessReordered, moreReordered = 0.15, 0.60

// unmodelled is the share of a compute buffer that small tensors which the graph leaves out can change: contrib/llama measured
// 2.7 % at most, and less than 0.2 % in all settings but one.
const unmodelled = 0.03

// unmodelledAltUp is that share for Gemma 3n, whose streams llama.cpp places otherwise: 7.4 % were measured.
const unmodelledAltUp = 0.10

// bufferOf returns the compute buffer, and between what it is where the settings leave something open.
func bufferOf(c Transformer, s Server, slots int, cells setting.KVConfig) (b setting.ComputeBuffer, err error) {
	given := s.settings(slots, cells)
	if b.Bytes, err = c.ComputeBuffer(given); err != nil {
		return b, err
	}
	b.Least, b.Most = b.Bytes, b.Bytes
	allow := func(open bool, reason string, change func(*LlamaCpp)) {
		other := given
		change(&other)
		n, wrong := c.ComputeBuffer(other)
		if !open || wrong != nil || n == b.Bytes {
			return
		}
		b.Least, b.Most = min(b.Least, n), max(b.Most, n)
		b.Open = append(b.Open, reason)
	}
	allow(s.Auto && !given.RotatedValues && !surelyFlash(c, s), "flash attention is off where the GPU cannot do it", func(l *LlamaCpp) { l.FlashAttention = false })
	allow(s.Build == 0, "builds until early 2026 have wider masks", func(l *LlamaCpp) { l.Build = narrowMask - 1 })
	allow(s.Slots == "", "each slot may have a cache of its own", func(l *LlamaCpp) { l.Unified = false })
	allow(s.Outputs == 0, "the logits of one token for each slot may be enough", func(l *LlamaCpp) { l.Outputs = max(1, slots) })
	allow(s.Backend != onHost && hasIndexer(c), "the scores of each head of the indexer may be held", func(l *LlamaCpp) { l.ApartIndex = true })
	share := unmodelled
	if Own[AltUp](c) != nil {
		share = unmodelledAltUp
	}
	if s.Predicts {
		own := given
		own.Predicts = true
		n, err := c.ComputeBuffer(own)
		if err != nil {
			return b, err
		}
		b.Bytes, b.Least, b.Most = b.Bytes+n, b.Least+n, b.Most+n
	}
	less, more := share, share
	if s.Backend != onHost && s.Backend != onCUDA {
		less, more = lessReordered, moreReordered
		b.Open = append(b.Open, "Vulkan and Metal change the order of the operations")
	}
	b.Least, b.Most = max(0, b.Least-alloc.Bytes(less*float64(b.Bytes))), b.Most+alloc.Bytes(more*float64(b.Bytes))
	return b, nil
}

// settings returns what decides the compute buffer for this many sequences, whose cache is cells.
func (s Server) settings(slots int, cells setting.KVConfig) LlamaCpp {
	all := func(n int) int { return min(n, setting.MaxField/max(1, cells.Batch)) * max(1, cells.Batch) }
	return LlamaCpp{
		ContextLength: all(cells.ContextLength), Windowed: all(min(cells.Window, cells.ContextLength)), Slots: slots, Unified: s.Slots != "apart", Batch: s.Batch, Outputs: s.Outputs,
		FlashAttention: s.FlashAttention, Host: s.Backend == onHost, GPUs: len(s.Split), RotatedKeys: cells.Keys != "", RotatedValues: setting.Or(cells.Values, cells.Keys) != "",
		Build: s.Build, Drafts: s.Drafts,
	}
}

// hasIndexer reports whether an indexer selects the tokens that attention reads.
func hasIndexer(c Transformer) bool { return c.Latent != nil && c.Latent.Indexer != nil }

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

// ComputeBuffer returns what llama.cpp prints as the compute buffer of a GPU that has all layers: the memory of its graph
// for a whole batch, as package ggml computes it.
//
// Several GPUs work on four batches at once, and each holds all their inputs and masks (GGML_SCHED_MAX_COPIES in
// ggml/src/ggml-backend.cpp). docs/estimate.md compares the result with what llama.cpp printed. The error says which
// number of the transformer or of l makes no sense.
func (c Transformer) ComputeBuffer(l LlamaCpp) (alloc.Bytes, error) {
	batch := min(setting.Or(l.Batch, usualBatch), l.ContextLength)
	switch {
	case c.Family.Encoder():
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: that of %v with these settings is not known", c.Family)
	case batch < 1 || l.ContextLength > setting.MaxField || c.Heads < 1 || c.Hidden < 1:
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: context length %d, batch %d, %d heads, hidden %d: want 1 or more", l.ContextLength, batch, c.Heads, c.Hidden)
	}
	slots, streams := max(1, l.Slots), 1
	if !l.Unified {
		streams = slots
	}
	s := ggml.Setting{
		Cells: l.ContextLength / streams, WindowCells: setting.Or(l.Windowed, l.ContextLength) / streams, Streams: streams, Sequences: slots,
		Batch: batch, Outputs: min(batch, setting.Or(l.Outputs, batch)), Flash: l.FlashAttention, RotatedKeys: l.RotatedKeys, RotatedValues: l.RotatedValues,
		WideMask: l.before(narrowMask), Copied: l.before(byIndexes), ApartGates: l.before(fusedGates), ApartHeads: l.before(packedViews), ApartIndex: l.ApartIndex, Host: l.Host,
	}
	graph := graphOf(c)
	if l.Predicts {
		graph = predictingGraphOf(c)
	}
	if rollsBack(c) {
		s.Drafts = l.Drafts
	}
	most, ok := ggml.BufferSize(graph, s)
	if l.GPUs > 1 {
		mask := int64(l.ContextLength)
		if l.FlashAttention && s.WideMask {
			mask += mask / 2
		}
		if hasIndexer(c) { // it has a mask of its own, in float16
			mask += int64(l.ContextLength) / 2
		}
		most += 3 * 4 * (2*int64(c.Hidden) + mask) * int64(batch)
	}
	if !ok || most < 0 || most > setting.MaxTotal {
		return 0, fmt.Errorf("estimate llama.cpp's compute buffer: it takes more than %v", alloc.Bytes(setting.MaxTotal))
	}
	return alloc.Bytes(most), nil
}
