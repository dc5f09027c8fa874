package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Machine is an Option that says on what GPU a model runs and how its kernels are loaded. Both
// decide how much memory CUDA's context takes, outside the allocator. The zero value of each means
// unknown, and widens the bands.
type Machine struct {
	// GPU is the generation of NVIDIA's GPU: "pascal" (GTX 10, P100), "volta" (V100), "turing" (RTX 20, T4), "ampere" (RTX 30,
	// A100, A10), "ada" (RTX 40, L4, L40S), "hopper" (H100, H200) or "blackwell" (RTX 50, B200).
	GPU string
	// Loading is when a process loads its kernels: "lazy", each when it is needed, as since CUDA 11.7, or "eager", all at
	// the start, as before.
	Loading string
}

// Apply is the method of an Option.
func (m Machine) Apply(c *setting.Config) { c.Machine = setting.Machine(m) }

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
	Keys          string      // the type in which keys and values are stored, if not the DType: llama.cpp's "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", or an element type
	Values        string      // that of values, if keys are stored in another, such as "float16"
}

// Apply is the method of an Option.
func (k KVConfig) Apply(c *setting.Config) { c.Cache = (*setting.KVConfig)(&k) }

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
	// ZeroGrad is where the loop clears the parameters' gradients: "first", before the forward pass or after the optimizer's
	// step; "backward", between the forward and the backward pass; "kept", nowhere: they are set to zero and keep their
	// memory. Those that are cleared are freed, as zero_grad(set_to_none=True) does, PyTorch's default since 2.0.
	ZeroGrad string
	// Output is how long the model's output lives, and with it what the loss read: "held", a variable holds it until the
	// next forward pass returns; "in-pass", until the backward pass is over; "dropped", it dies when the backward pass has
	// used it; "with-cache", as "held", with the keys and values that decoders of transformers return too, unless
	// use_cache is off.
	Output string
	// Form is the way in which torch.optim goes through the parameters, whose temporary tensors are those of Adam
	// (torch/optim/adam.py): "foreach", all at once, with a temporary tensor for each; "one-by-one", with two temporaries
	// of one; "fused", in one kernel, without temporaries.
	Form string
	// Decay is whether the optimizer has a weight decay, "used" or "none". SGD, Momentum and Adam add it to a copy of the
	// gradients, with "foreach" of all at once; AdamW needs none.
	Decay string
	// InBackward lets the optimizer step through each parameter as soon as its gradient is
	// there, which it then frees (torch.Tensor.register_post_accumulate_grad_hook). Micro-batches
	// cannot be added up then.
	InBackward bool
	// MicroBatches is the number of batches of the input's size whose gradients
	// are added up before the optimizer steps; 0 means 1.
	MicroBatches int
}

// Apply is the method of an Option.
func (l Loop) Apply(c *setting.Config) { c.Loop = setting.Loop(l) }
