package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Kernel says how attention computes its scores. The zero value means unknown.
type Kernel = setting.Kernel

// The kernels, by their names in transformers (attn_implementation). Attention that no kernel can
// compute, such as with capped scores or sinks, stays as it is.
const (
	SDPA           = setting.SDPA           // "sdpa": scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention = setting.FlashAttention // "flash_attention_2": SDPA that needs no masks for its windows
	EagerAttention = setting.EagerAttention // "eager": elementary operations, which hold the scores
)

// Machine is an Option that says on what GPU a model runs and how its kernels are loaded. Both
// decide how much memory CUDA's context takes, outside the allocator. The zero value of each means
// unknown, and widens the bands.
type Machine struct {
	GPU     Generation
	Loading Loading
}

func (m Machine) apply(c *setting.Config) { c.Machine = setting.Machine(m) }

// Generation is a generation of NVIDIA's GPUs. The zero value means that it is not known.
type Generation = setting.Generation

// The generations.
const (
	Pascal    = setting.Pascal    // GTX 10, P100
	Volta     = setting.Volta     // V100
	Turing    = setting.Turing    // RTX 20, T4
	Ampere    = setting.Ampere    // RTX 30, A100, A10
	Ada       = setting.Ada       // RTX 40, L4, L40S
	Hopper    = setting.Hopper    // H100, H200
	Blackwell = setting.Blackwell // RTX 50, B200
)

// Loading says when a process loads its kernels into the CUDA context. The zero value means
// unknown.
type Loading = setting.Loading

// The ways of loading.
const (
	LazyLoading  = setting.LazyLoading  // each kernel when it is needed: CUDA 11.7 and later
	EagerLoading = setting.EagerLoading // all at the start, as CUDA did before
)

// KVConfig describes the key/value cache of a transformer that is served. As an Option it adds the cache to the
// memory of inference, and must hold the tokens of the input, which are the last of each sequence.
type KVConfig struct {
	Batch         int         // sequences at once
	ContextLength int         // tokens of each, prompt and answer together
	Layers        int         // that attend
	KVHeads       int         // heads of keys and values; grouped attention has fewer than heads of queries
	HeadSize      int         // elements of one head's key
	ValueSize     int         // elements of one head's value; 0 means HeadSize
	Latent        int         // elements kept of a token in place of keys and values, by multi-head latent attention; 0 for none
	Window        int         // of sliding window attention, which keeps no older tokens; 0 for none
	Full          int         // how many of the Layers attend to all tokens, where others have the Window
	Fixed         int         // further elements of each sequence, whatever its length: states of recurrent layers, keys and values of an encoder's output
	FixedType     alloc.DType // of Fixed; the zero value is the DType
	DType         alloc.DType // of keys and values; the zero value is float16
	Blocks        Blocks      // how keys and values are stored if quantized, in place of the DType
	Values        Blocks      // how values are stored if keys are stored in another way; one float16 is Blocks{1, 2}
}

func (k KVConfig) apply(c *setting.Config) { c.Cache = (*setting.KVConfig)(&k) }

// Blocks says how a quantized type is stored: each block of Elements takes Bytes, scales included.
// Package llamacpp has the types of llama.cpp.
type Blocks = setting.Blocks

// KVCache returns the memory of the keys and values of all tokens: layers x batch x tokens x KV heads
// elements of HeadSize and of ValueSize. With a Latent it is layers x batch x tokens x latent elements
// instead. Layers with a Window keep no more tokens than the window has. The error says what is
// wrong with the configuration.
func KVCache(c KVConfig) (alloc.Bytes, error) {
	k, err := setting.KVCache(setting.KVConfig(c))
	return k.All(), err
}

// Loop is an Option that says how the training loop works. The zero value of each setting means
// unknown: the figures are then those of the loops in PyTorch's tutorials, and the upper bounds are
// those of the worst setting.
type Loop struct {
	ZeroGrad ZeroGrad
	Output   Output
	Form     Form
	// Decay is whether the optimizer has a weight decay, which SGD, Momentum and Adam
	// add to a copy of the gradients; AdamW needs none.
	Decay Decay
	// InBackward lets the optimizer step through each parameter as soon as its gradient is
	// there, which it then frees (torch.Tensor.register_post_accumulate_grad_hook). Micro-batches
	// cannot be added up then.
	InBackward bool
	// MicroBatches is the number of batches of the input's size whose gradients
	// are added up before the optimizer steps; 0 means 1.
	MicroBatches int
}

func (l Loop) apply(c *setting.Config) { c.Loop = setting.Loop(l) }

// ZeroGrad says where a loop clears the parameters' gradients. The zero value means unknown.
type ZeroGrad = setting.ZeroGrad

// Where gradients are cleared. Those that are cleared are freed, as
// zero_grad(set_to_none=True) does, PyTorch's default since 2.0.
const (
	ZeroGradFirst    = setting.ZeroGradFirst    // before the forward pass, or after the optimizer's step
	ZeroGradBackward = setting.ZeroGradBackward // between the forward and the backward pass
	ZeroGradKept     = setting.ZeroGradKept     // nowhere: they are set to zero and keep their memory
)

// Output says whether the loop's code holds what the model returned. The zero value means unknown.
type Output = setting.Output

// How long the model's output lives, and with it what the loss read.
const (
	OutputHeld      = setting.OutputHeld      // a variable holds it until the next forward pass returns
	OutputInPass    = setting.OutputInPass    // held until the backward pass is over
	OutputDropped   = setting.OutputDropped   // it dies when the backward pass has used it
	OutputWithCache = setting.OutputWithCache // OutputHeld, with the keys and values that decoders of transformers return too, unless use_cache is off
)

// Form says how an optimizer goes through the parameters. The zero value means unknown.
type Form = setting.Form

// The ways in which torch.optim goes through the parameters; its documentation calls them
// implementations. The sizes of their temporary tensors are those of Adam (torch/optim/adam.py).
const (
	ForEach  = setting.ForEach  // all parameters at once, with a temporary tensor for each
	OneByOne = setting.OneByOne // one after another, with two temporaries of one
	Fused    = setting.Fused    // in one kernel, without temporaries
)

// Decay says whether an optimizer uses weight decay. The zero value means unknown.
type Decay = setting.Decay

// Whether there is a weight decay. With ForEach it copies all gradients (torch/optim/sgd.py and
// adam.py, _multi_tensor_sgd and _multi_tensor_adam).
const (
	DecayNone = setting.DecayNone
	DecayUsed = setting.DecayUsed
)
