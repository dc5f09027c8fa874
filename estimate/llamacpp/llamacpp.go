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

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Server says how llama.cpp serves a transformer. Served, of a model of package zoo or a file of package checkpoint, makes
// an option of it: inference is llama.cpp's then. Its compute buffer replaces the memory of PyTorch's operations and of
// its allocator, and the weights are as large as llama.cpp's converter writes them, or as a GGUF file has them, with the
// embeddings in the memory of the CPU, until a later Quantization, Precision or Weights says otherwise.
// The report has no Footprint of training then.
type Server struct {
	// Slots is whether the sequences share one cache: "unified", --kv-unified, or "apart", as in releases since July 2025
	// without it. By default each has its own cells, and the compute buffer is that for all tokens.
	Slots          string
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
	// Auto is whether FlashAttention is llama.cpp's own choice, --flash-attn auto, which is on where the backend can do it
	// (src/llama-context.cpp, llama_context::sched_reserve). The bounds are then for both.
	Auto bool
	// Backend is ggml's: "cuda", "vulkan", "metal", or "cpu" where there is no GPU; the report is about the memory of the CPU
	// then. Vulkan and Metal change the order of the operations, and with it the compute buffer, in ways that are not
	// computed. "" is not known: the bounds allow for it.
	Backend string
	// Build is the number of llama.cpp's build, such as 8179 of early 2026; 0 means the newest that is known, v0.5.0 of late
	// 2026, with bounds that allow for those of the last year.
	Build int
	// Outputs is of how many of a batch's tokens the logits are computed; 0 means of all, as llama.h has it. The bounds then
	// allow for one of each sequence.
	Outputs int
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
	// Drafts is how many tokens are drafted at a time, --spec-draft-n-max. Recurrent layers of some architectures keep as many
	// states more, to return to after a wrong one. 0 means that nothing is drafted.
	Drafts int
	// Predicts is whether the model drafts with blocks of its own that predict further tokens (nextn_predict_layers of a GGUF
	// file): these have keys and values, and a compute buffer of their own.
	Predicts bool
	// Draft is what another model that drafts, --model-draft, takes of the GPU: Inference.Peak of its own report.
	Draft alloc.Bytes
}

// BestQuantization returns the widest of the UsualQuantizations with which the model fits into the
// budget, and the Report for it. The third result is false if none fits. The options are those of
// estimate.Model; a Served among them says that llama.cpp serves the model. The errors are those
// of estimate.Model. The option Train is an error too, because quantized weights are not trained.
func BestQuantization(layers []nn.Layer, budget alloc.Bytes, opts ...estimate.Option) (Quantization, *estimate.Report, bool, error) {
	var asked setting.Config
	look := setting.Func(func(c *setting.Config) { asked = *c })
	for _, q := range slices.Backward(UsualQuantizations()) {
		stored, err := q.Stored(layers)
		if err != nil {
			return "", nil, false, err
		}
		r, err := estimate.Model(layers, append(slices.Clip(opts), look, stored)...)
		if asked.Training {
			return "", nil, false, fmt.Errorf("estimate %s: quantized weights are not trained: leave Train out", asked.Name)
		}
		if err != nil {
			return "", nil, false, fmt.Errorf("%v: %w", q, err)
		}
		if r.Fits(budget) {
			return q, r, true, nil
		}
	}
	return "", nil, false, nil
}
