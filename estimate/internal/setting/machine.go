package setting

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Machine is estimate.Machine. A setting without a word is unknown.
type Machine struct {
	GPU     string
	Loading string
}

// The generations of NVIDIA's GPUs.
const (
	Pascal    = "pascal"    // GTX 10, P100
	Volta     = "volta"     // V100
	Turing    = "turing"    // RTX 20, T4
	Ampere    = "ampere"    // RTX 30, A100, A10
	Ada       = "ada"       // RTX 40, L4, L40S
	Hopper    = "hopper"    // H100, H200
	Blackwell = "blackwell" // RTX 50, B200
)

// When a process loads its kernels into the CUDA context.
const (
	LazyLoading  = "lazy"  // each kernel when it is first needed: the default since CUDA 11.7
	EagerLoading = "eager" // all at the start, the default before
)

// Context is a measured size of a CUDA context with PyTorch's kernels.
type Context struct {
	GPU     string // "" if the source does not say
	Loading string
	Bytes   alloc.Bytes
	Card    string // the card, and versions
	Source  string
}

// Contexts returns the measured sizes that the figures come from.
func Contexts() []Context { return slices.Clone(contexts) }

var contexts = []Context{
	{Pascal, EagerLoading, 721 * alloc.MiB, "GTX 1080, PyTorch 1.8, CUDA 10.1", "github.com/pytorch/pytorch/issues/55277"},
	{Volta, EagerLoading, 1006 * alloc.MiB, "Titan V, PyTorch 1.3", "github.com/pytorch/pytorch/issues/28394"},
	{Volta, EagerLoading, 1343 * alloc.MiB, "V100, CUDA 11.2", "huggingface/transformers, docs/source/en/perf_train_gpu_one.mdx at 0016acf7"},
	{Ampere, EagerLoading, 1687 * alloc.MiB, "RTX 3090, PyTorch 1.8, CUDA 11.1", "github.com/pytorch/pytorch/issues/55277"},
	{Ampere, LazyLoading, 256 * alloc.MiB, "RTX 3090, PyTorch 2.7, CUDA 12.8", "github.com/invoke-ai/InvokeAI/issues/9413"},
	{"", LazyLoading, 300 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/107667"},
	{"", LazyLoading, 400 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/109888"},
	{Ada, LazyLoading, 426 * alloc.MiB, "RTX 6000 Ada, PyTorch 2.10, CUDA 13.0", "github.com/unslothai/unsloth-zoo/pull/1053"},
	{Hopper, LazyLoading, 1833 * alloc.MiB, "H100, vLLM: everything except PyTorch's allocator, NCCL included", "github.com/vllm-project/vllm/pull/10511"},
}

// Context returns the size of the CUDA context: the median of what was measured on such machines,
// and the least and most that it may be. If Loading is unknown, the median is that of LazyLoading.
func (m Machine) Context() (bytes, least, most alloc.Bytes) {
	fits := func(c Context, l string) bool {
		return (m.GPU == "" || c.GPU == "" || c.GPU == m.GPU) && (l == "" || c.Loading == l)
	}
	usual, any := sizes(func(c Context) bool { return fits(c, Or(m.Loading, LazyLoading)) }), sizes(func(c Context) bool { return fits(c, m.Loading) })
	if len(any) == 0 {
		any = sizes(func(Context) bool { return true })
	}
	if len(usual) == 0 {
		usual = any
	}
	return usual[len(usual)/2], any[0], any[len(any)-1]
}

// sizes returns the sizes of the contexts for which want is true, in ascending order.
func sizes(want func(Context) bool) []alloc.Bytes {
	var n []alloc.Bytes
	for _, c := range contexts {
		if want(c) {
			n = append(n, c.Bytes)
		}
	}
	slices.Sort(n)
	return n
}

// The workspaces that cuBLAS has in PyTorch's cache, one for each thread that runs a forward or a
// backward pass. PyTorch chooses their size (aten/src/ATen/cuda/CublasHandlePool.cpp,
// parseChosenWorkspaceSize).
const (
	cublasWorkspace       = 8320 * alloc.KiB // :4096:2:16:8
	cublasWorkspaceHopper = 32 * alloc.MiB
)

// Backend says where the model runs, as kernels differ in what they keep.
type Backend uint8

// The backends. PyTorch's dropout keeps a mask: on the CPU in the type of the activations, on CUDA
// with one byte for each element.
const (
	CUDA Backend = iota
	CPU
)

// String is the name of the backend.
func (b Backend) String() string {
	if b == CPU {
		return "CPU"
	}
	return "CUDA"
}

// OneDNNThreads is the number of CPU threads with which the peaks were measured. The workspaces of
// oneDNN grow with it.
const OneDNNThreads = 2

// How attention computes its scores, by the names that transformers gives it (attn_implementation). Without a word it
// is SDPA, unless the layers say otherwise. Attention that none of these kernels can compute, such as with capped scores
// or sinks, ignores the setting.
const (
	SDPA           = "sdpa"  // scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention = "flash" // "flash_attention_2": like SDPA, but needs no masks for its windows
	EagerAttention = "eager" // elementary operations, which hold the scores
)
