package setting

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Machine is estimate.Machine.
type Machine struct {
	GPU     Generation
	Loading Loading
}

// Generation is a generation of NVIDIA's GPUs.
type Generation uint8

// The generations.
const (
	UnknownGPU Generation = iota
	Pascal                // GTX 10, P100
	Volta                 // V100
	Turing                // RTX 20, T4
	Ampere                // RTX 30, A100, A10
	Ada                   // RTX 40, L4, L40S
	Hopper                // H100, H200
	Blackwell             // RTX 50, B200
)

// Loading says when a process loads its kernels into the CUDA context.
type Loading uint8

// The ways to load kernels.
const (
	LoadingUnknown Loading = iota
	LazyLoading            // each kernel when it is first needed: the default since CUDA 11.7
	EagerLoading           // all at the start, the default before
)

// String says when kernels are loaded.
func (l Loading) String() string {
	switch l {
	case LazyLoading:
		return "when needed"
	case EagerLoading:
		return "at the start"
	}
	return "unknown"
}

// Context is a measured size of a CUDA context with PyTorch's kernels.
type Context struct {
	GPU     Generation // UnknownGPU if the source does not say
	Loading Loading
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
	{UnknownGPU, LazyLoading, 300 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/107667"},
	{UnknownGPU, LazyLoading, 400 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/109888"},
	{Ada, LazyLoading, 426 * alloc.MiB, "RTX 6000 Ada, PyTorch 2.10, CUDA 13.0", "github.com/unslothai/unsloth-zoo/pull/1053"},
	{Hopper, LazyLoading, 1833 * alloc.MiB, "H100, vLLM: everything except PyTorch's allocator, NCCL included", "github.com/vllm-project/vllm/pull/10511"},
}

// Context returns the size of the CUDA context: the median of what was measured on such machines,
// and the least and most that it may be. If Loading is unknown, the median is that of LazyLoading.
func (m Machine) Context() (bytes, least, most alloc.Bytes) {
	fits := func(c Context, l Loading) bool {
		return (m.GPU == UnknownGPU || c.GPU == UnknownGPU || c.GPU == m.GPU) && (l == LoadingUnknown || c.Loading == l)
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

// Kernel says how attention computes its scores.
type Kernel uint8

// The kernels, with the names that transformers gives them (attn_implementation). Attention that
// none of these kernels can compute, such as with capped scores or sinks, ignores the setting.
const (
	KernelUnknown  Kernel = iota // SDPA, unless the layers say otherwise
	SDPA                         // "sdpa": scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention               // "flash_attention_2": like SDPA, but needs no masks for its windows
	EagerAttention               // "eager": elementary operations, which hold the scores
)

// String is the kernel's name.
func (k Kernel) String() string {
	switch k {
	case SDPA:
		return "sdpa"
	case FlashAttention:
		return "flash"
	case EagerAttention:
		return "eager"
	}
	return "unknown"
}
