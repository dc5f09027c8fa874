package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Backend is where the model runs: kernels differ in what they keep.
type Backend = setting.Backend

// The backends. On the CPU, PyTorch's dropout keeps a mask of the type of the
// activations; on CUDA one of a byte an element.
const (
	CUDA = setting.CUDA
	CPU  = setting.CPU
)

// Kernel is how attention computes its scores.
type Kernel = setting.Kernel

// The kernels, by the names that transformers has for them (attn_implementation). Attention that
// no kernel does, such as with capped scores or sinks, stays as it is.
const (
	KernelUnknown  = setting.KernelUnknown  // SDPA, unless the layers say otherwise
	SDPA           = setting.SDPA           // "sdpa": scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention = setting.FlashAttention // "flash_attention_2": SDPA that needs no masks for its windows
	EagerAttention = setting.EagerAttention // "eager": elementary operations, which hold the scores
)

// Machine says what a model runs on, where that bears on memory outside the
// allocator. What is not known widens the bands.
type Machine struct {
	GPU     Generation
	Loading Loading
}

// Generation is a generation of NVIDIA's GPUs.
type Generation = setting.Generation

// The generations.
const (
	UnknownGPU = setting.UnknownGPU
	Pascal     = setting.Pascal    // GTX 10, P100
	Volta      = setting.Volta     // V100
	Turing     = setting.Turing    // RTX 20, T4
	Ampere     = setting.Ampere    // RTX 30, A100, A10
	Ada        = setting.Ada       // RTX 40, L4, L40S
	Hopper     = setting.Hopper    // H100, H200
	Blackwell  = setting.Blackwell // RTX 50, B200
)

// Loading is when a process loads its kernels into the context.
type Loading = setting.Loading

// The ways of loading.
const (
	LoadingUnknown = setting.LoadingUnknown
	LazyLoading    = setting.LazyLoading  // each kernel when it is needed: CUDA 11.7 and later
	EagerLoading   = setting.EagerLoading // all at the start, as CUDA did before
)

// KVConfig describes the key/value cache of a transformer that is served.
type KVConfig struct {
	Batch    int         // sequences at once
	Context  int         // tokens of each, prompt and answer together
	Layers   int         // that attend
	KVHeads  int         // heads of keys and values, fewer than those of queries in grouped attention
	HeadSize int         // elements of one head
	Latent   int         // elements kept of a token in place of keys and values, by multi-head latent attention; 0 for none
	Window   int         // of sliding window attention, which keeps no older tokens; 0 for none
	Full     int         // of the Layers, those that attend to all tokens where others have the Window
	Fixed    int         // elements of each sequence besides, however long it is: states of recurrent layers, keys and values of an encoder's output
	DType    alloc.DType // the zero value is float16
	Blocks   Blocks      // of a quantized type, in place of the DType
}

// Blocks is how a quantized type is stored: so many Elements in so many Bytes, their scales
// included. Package llamacpp has those of llama.cpp.
type Blocks = setting.Blocks

// KVCache returns the memory of the keys and values that are kept of all tokens: 2 x layers x
// batch x context x KV heads x head size elements, and layers x batch x context x latent
// elements where there is a Latent. Layers with a Window keep no more tokens than that. The
// error says what is wrong with the configuration.
func KVCache(c KVConfig) (alloc.Bytes, error) { return setting.KVCache(setting.KVConfig(c)) }
