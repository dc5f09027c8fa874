// Package llamacpp is about llama.cpp, and what is built on it: how it serves a model, and in which quantizations. Package
// estimate computes what that takes of a GPU.
//
//	m, err := zoo.ByName("llama-3-8b")
//	cache, err := m.Cache(1, 8192)
//	served, err := m.Served(cache, llamacpp.Server{FlashAttention: true})
//	q, r, ok, err := llamacpp.BestQuantization(m.Layers, 8*alloc.GiB, served, estimate.Tokens(1, 512))
//
// It reads no files: package checkpoint reads GGUF. All functions may be called
// from several goroutines.
package llamacpp

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Server says how llama.cpp serves a transformer. Served, of a model of package zoo or a file of package checkpoint, makes
// an option of it: inference is llama.cpp's then. Its compute buffer replaces the memory of PyTorch's operations and of
// its allocator, and the weights are as large as llama.cpp's converter writes them, or as a GGUF file has them, with the
// embeddings in the memory of the CPU, until a later Quantization, Precision or Weights says otherwise.
// The report has no Footprint of training then.
type Server struct {
	// Slots is whether the sequences share one cache: "unified", --kv-unified, or "apart", as in releases since July 2025
	// without it. Without a word, each has its own cells, and the compute buffer is that for all tokens.
	Slots          string
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
	// GPULayers is how many layers a GPU holds, with their keys and values, --n-gpu-layers: the blocks from the last to the
	// first, after the output, which is one more layer (src/llama-model.cpp, load_tensors, since pull request 18148 of
	// December 2025; before it the output came last). 0 means all, and less than 0 none. Layers with a window and recurrent
	// layers are taken to be on the GPU in the same proportion as all others. Memory.Host has the rest.
	GPULayers int
	// Split are the proportions by which several GPUs share these layers, --tensor-split. The report is then about the one
	// that needs most.
	Split []float64
	// Projector is the size of the weights that turn images into tokens, --mmproj, which are all on the GPU.
	Projector alloc.Bytes
}
