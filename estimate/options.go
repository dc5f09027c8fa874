package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Option says what to estimate: a Sharding, a LoRA, a Loop, a Machine, a Quantized, a KVConfig, or what a function
// below returns. Later options win over earlier ones. Settings of a few words take them as the flags of gpumemtrack's
// command estimate do; Model returns an error that lists them for any other.
type Option interface {
	// Apply changes the configuration of one estimate. Model calls it, and so do the packages below
	// estimate that combine options. Programs only pass options on: the type of the configuration is internal.
	Apply(*setting.Config)
}

// option is an Option that calls a function.
type option = setting.Func

// newConfig applies the options to the defaults and checks them.
func newConfig(opts []Option) (*setting.Config, error) { return setting.New(all(opts).Apply) }

// InputShape gives the model an input of the type of activations: batch first, and
// for images channels before height and width. Given again, it adds a further
// input, which a Module reaches by Flow.Input; one that no layer reads is an error.
func InputShape(dims ...int) Option { return inputOf(0, dims) }

// Tokens gives the model an input of token numbers, (batch, length) of int64.
func Tokens(batch, length int) Option { return inputOf(alloc.Int64, []int{batch, length}) }

// inputOf gives the model an input of an element type; 0 is that of activations.
func inputOf(d alloc.DType, dims []int) Option {
	return option(func(c *setting.Config) {
		c.Inputs = append(c.Inputs, setting.Input{Shape: append(alloc.Shape{}, dims...), Dtype: d})
	})
}

// Name names the model in the report; without it the name is "Sequential".
func Name(name string) Option { return option(func(c *setting.Config) { c.Name = name }) }

// Precision sets the type of weights, activations and gradients, without a master
// copy; without it that is float32.
func Precision(d alloc.DType) Option {
	return option(func(c *setting.Config) {
		c.Weights, c.Activations, c.Gradients, c.Master = d, d, d, false
		c.Stored, c.Sizes, c.Packed = setting.Amount{}, nil, nil
	})
}

// Weights sets the element type of weights and buffers.
func Weights(d alloc.DType) Option {
	return option(func(c *setting.Config) { c.Weights, c.Stored, c.Sizes, c.Packed = d, setting.Amount{}, nil, nil })
}

// Gradients sets the type of the parameters' gradients.
func Gradients(d alloc.DType) Option { return option(func(c *setting.Config) { c.Gradients = d }) }

// MixedPrecision sets weights, activations and gradients to d and lets the
// optimizer hold a master copy of weights that are not float32 besides its states,
// as Megatron and DeepSpeed do: 16 bytes a parameter with Adam ("ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", arXiv:1910.02054,
// section 3.1). torch.autocast is something else: see Autocast.
func MixedPrecision(d alloc.DType) Option {
	return option(func(c *setting.Config) {
		Precision(d).Apply(c)
		c.Master = true
	})
}

// Autocast runs the model under torch.autocast. Weights keep their type. Matrix products,
// convolutions and attention compute in d, with copies of the weights that autograd keeps; softmax,
// norms and losses compute in float32 (PyTorch's documentation, "CUDA Op-Specific Behavior").
func Autocast(d alloc.DType) Option { return option(func(c *setting.Config) { c.Autocast = d }) }

// Train makes Peak, Fits and MaxBatch answer for training with an optimizer. Without it, they answer for inference. The
// report has both in any case. An optimizer counts by the states that it holds for each parameter:
//
//   - "none" and "sgd", which has no momentum: no state;
//   - "momentum", which is SGD with momentum: one element;
//   - "adam" and "adamw": two elements (torch.optim.Adam: exp_avg and exp_avg_sq);
//   - "adam8bit", of bitsandbytes: two bytes, and two float32 constants for each block of 256; a tensor of fewer than 4096
//     elements keeps float32 states (bitsandbytes/optim/optimizer.py: Optimizer2State, min_8bit_size; arXiv:2110.02861);
//   - "adafactor": the sums of a matrix's rows and columns in place of its second moments, and no first moments
//     (arXiv:1804.04235, section 3; transformers.Adafactor with beta1=None);
//   - "lion": one element (arXiv:2302.06675; lion_pytorch.Lion: exp_avg);
//   - "muon": one element in the matrices inside the model, and the states of AdamW for the rest: vectors, embeddings and
//     the output head (torch.optim.Muon and kellerjordan.github.io/posts/muon).
func Train(optimizer string) Option {
	return option(func(c *setting.Config) { c.Training, c.Optimizer = true, setting.Optimizer(optimizer) })
}

// Checkpointed makes the layers whose paths match one of the patterns (those of
// path.Match, such as "model.layers.*") keep only their input and compute the
// rest again in the backward pass, as torch.utils.checkpoint does. A pattern that no whole
// path matches may match what follows a dot in one: "layers.*" finds "model.layers.0". A
// pattern that matches none is an error.
func Checkpointed(patterns ...string) Option {
	return option(func(c *setting.Config) { c.Checkpoints = append(c.Checkpoints, patterns...) })
}

// CheckpointSaves makes the layers of Checkpointed keep some of the tensors that they compute, so that they need not compute
// them again, like context_fn of torch.utils.checkpoint:
//
//   - "products": what matrix products and kernels of attention return;
//   - "half": what kernels of attention return, and every other product without a bias, the first of a layer among
//     them: torchtitan's selective checkpointing by operation.
func CheckpointSaves(what string) Option {
	return option(func(c *setting.Config) { c.Saves = what })
}

// Offloaded says what the memory of the CPU holds in place of the device's. The optimizer then runs there; Memory.Host says
// how much it is.
//
//   - "optimizer": the optimizer's states and the master weights, and beside them a copy of weights and gradients for the
//     optimizer to work on, as torchao's CPUOffloadOptimizer and DeepSpeed's ZeRO-Offload (arXiv:2101.06840) do. Gradients
//     stay on the device until the step.
//   - "parameters": the weights too, as FSDP's CPUOffload, ZeRO-Infinity (arXiv:2104.07857) and accelerate's cpu_offload
//     do. A layer's weights are on the device while it runs, and the next one's with them; gradients leave as soon as they
//     are made.
//   - "paged": the optimizer's states, in memory that the driver moves between device and CPU, as the paged optimizers of
//     bitsandbytes do (functional.py, get_paged). They are not in PyTorch's allocator. The device holds as much of them as
//     there is room for, which Device and Needed leave out.
func Offloaded(what string) Option { return option(func(c *setting.Config) { c.Offload = what }) }

// OnCPU runs the model on the CPU instead of CUDA. There is no Footprint then, and the mask that
// PyTorch's dropout keeps has the type of the activations instead of one byte for each element.
func OnCPU() Option { return option(func(c *setting.Config) { c.Backend = setting.CPU }) }

// Installed says which versions of Python's packages run the model, as pip freeze lists them: "torch==2.4.1",
// "transformers==4.46", "bitsandbytes==0.43.2", "autoawq==0.2.6", "torchao==0.7". What is not said counts as new. These versions differ in memory:
//
//   - torch before 1.10: a ReLU that is not in place kept its input instead of its output.
//   - torch before 1.11: softmax kept its input too, and cuBLAS had no workspace in the cache.
//   - torch from 1.13 to 2.1: a mean keeps its input. Norms that are written in elementary operations
//     take a mean of squares.
//   - torch before 2.0: attention held its scores, unless Attends says otherwise; zero_grad kept the gradients' memory, and
//     optimizers went one by one, unless the Loop says otherwise.
//   - transformers before 4.46: most models turned their logits into float32 before the loss read them.
//   - transformers before 4.45: a prompt had logits for all its tokens, not only for the last.
//   - bitsandbytes before 0.43.2: products kept their inputs for nothing, as long as the loop's code holds the loss (its pull
//     request 1270). Where it is not said, the upper bounds of training allow for such a version, unless torch is 2.4 or
//     later, which appeared in the same month as 0.43.2.
//   - bitsandbytes before 0.42: weights of four bits were unpacked to float16.
//   - torchao, of any version: it makes weights in "nf4-double" from whole ones on the device, as torchtune's QLoRA does
//     (dtypes/nf4tensor.py). What that takes for the largest of them stays reserved: 16 differences for each element, which
//     since 0.2 are those of 2^20 elements at a time. Without it, bitsandbytes makes them.
//   - autoawq before 0.2.7.post3: the attention of its fused modules held its scores, and made their softmax in float32, unless
//     Attends says otherwise. A version counts for models that are served with weights in "awq" and that it fuses, such as Llama.
func Installed(packages ...string) Option {
	return option(func(c *setting.Config) { c.Installed = append(c.Installed, packages...) })
}

// ExpandableSegments lets PyTorch's allocator grow its segments, as PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True does.
func ExpandableSegments() Option { return option(func(c *setting.Config) { c.Expandable = true }) }

// Frozen marks the layers whose paths match one of the patterns, with all layers in them, as not
// trained: they have no gradients, no optimizer states and no LoRA adapters. The patterns are those
// of Checkpointed.
func Frozen(patterns ...string) Option {
	return option(func(c *setting.Config) { c.Frozen = append(c.Frozen, patterns...) })
}

// AskedAlone leaves out the Footprint of what is not asked about, which is training without Train
// and inference with it. That saves half of the time or more of a program that tries many settings.
func AskedAlone() Option { return option(func(c *setting.Config) { c.Searches = true }) }

// all returns one option that does what several do.
func all(opts []Option) Option {
	return option(func(c *setting.Config) {
		for _, o := range opts {
			if o != nil {
				o.Apply(c)
			}
		}
	})
}

// Attends says which kernel attention uses, transformers' attn_implementation. Without it, that is the one that transformers
// uses for the model's family. Attention that the kernel cannot compute, such as with capped scores or sinks, stays as it is.
//
//   - "sdpa": scaled_dot_product_attention, whose kernels hold no scores;
//   - "flash": "flash_attention_2", which needs no masks for its windows either;
//   - "eager": elementary operations, which hold the scores.
func Attends(kernel string) Option { return option(func(c *setting.Config) { c.Kernel = kernel }) }

// RunsExperts says how the experts of mixtures run. Without it, that is as in transformers, where all experts of Llama 4 run
// on every token, and before 5.0 experts of other models ran one after another.
//
//   - "grouped": all at once, each on the tokens that are routed to it (torch._grouped_mm);
//   - "loop": one after another, on these tokens.
func RunsExperts(how string) Option { return option(func(c *setting.Config) { c.Experts = how }) }

// Decoding is an Option that says how the autoencoder of a pipeline decodes images, as enable_vae_slicing and
// enable_vae_tiling of diffusers' pipelines set it.
type Decoding struct {
	Sliced bool `json:"sliced"` // one image of a batch after another
	// Tiled decodes images that are larger than the autoencoder's usual ones in tiles, one after another, which overlap. All stay
	// until the last is there. It is an error for an autoencoder of which it is not known how it tiles.
	Tiled bool `json:"tiled"`
}

// Apply is the method of an Option.
func (d Decoding) Apply(c *setting.Config) { c.Decode = setting.Decoding(d) }

// LoRA is an Option that trains adapters of low rank for linear layers, y = Wx + BAx, and freezes all else
// (arXiv:2106.09685), as Hugging Face's PEFT does. With a Quantized it is QLoRA (arXiv:2305.14314).
type LoRA struct {
	Rank int
	// Targets name the Linear layers that get adapters, by the name in the layer that holds
	// them, such as "q_proj", or by a pattern of path.Match for the whole path; PEFT's "all-linear" are all but
	// a head named lm_head. What Frozen names, and all that is in it, gets none.
	Targets []string
	Dropout float64     // of an adapter's input
	DType   alloc.DType // of adapters; the zero value is float32, as in PEFT
}

// Apply is the method of an Option.
func (l LoRA) Apply(c *setting.Config) { c.Lora = (*setting.LoRA)(&l) }

// Quantized is an Option that stores the weights of linear layers in few bits, in training and in inference. They are not
// trained. A matrix product first unpacks the weight into the type of activations; with "int8", only the backward pass
// does. A size that a file or a
// llamacpp.Quantization gave does not count then.
type Quantized struct {
	// Base is how each weight is stored:
	//
	//   - "nf4": bitsandbytes' format of 4 bits for each element and a float32 for each block of 64 (functional.py,
	//     QuantState). Its FP4 takes as much memory.
	//   - "nf4-double": these are quantized in turn, a byte for each block, and a float32 for 256 of those.
	//   - "int8": a byte for each element and a float32 for each row (arXiv:2208.07339; bitsandbytes).
	//   - "gptq": 4 bits for each element, a float16 and another 4 bits for each 128 inputs of an output, and the group of
	//     each input (arXiv:2210.17323; AutoGPTQ, qlinear_tritonv2.py).
	//   - "awq": 4 bits for each element, and a float16 and another 4 bits for each 128 inputs of an output
	//     (arXiv:2306.00978; AutoAWQ).
	Base string
	// Layers are the Linear layers, by name or by a pattern of path.Match for the whole path, as
	// LoRA's Targets; none means all but a head named lm_head, as transformers has it.
	Layers []string
	// Computes is the type of matrix products, bnb_4bit_compute_dtype of transformers. The zero
	// value means that of activations; activations of another type are copied to it.
	Computes alloc.DType
	// Parts are the bases of parts of a pipeline by their names, such as "transformer": "nf4" and "text_encoder_2": "int8",
	// in place of Base; other parts stay as they are. It is diffusers' quant_mapping.
	Parts map[string]string
}

// Apply is the method of an Option.
func (q Quantized) Apply(c *setting.Config) { c.Quantize(setting.Quantized(q)) }

// Sharding is an Option that divides a model among devices. The report is then that of one device,
// the one that needs most. The zero value means one device.
type Sharding struct {
	// Data is the number of replicas. Each has a batch of its own: the input is that of one
	// replica.
	Data int
	// ZeRO is the stage by which the replicas divide what they hold: 1 the
	// optimizer's states, 2 the gradients too, 3 the weights too
	// (arXiv:1910.02054, section 5). FSDP's full shard is stage 3, and taken for it: where parameters are
	// frozen it holds what checkpointed layers read, and its gradients, until the backward pass is over.
	ZeRO int
	// Tensor is the number of devices that share each split layer: Linear and
	// Embedding with Split, and what is made of them, as in Megatron-LM
	// (arXiv:1909.08053, section 3). It must divide the heads of attention; where there are fewer heads of
	// keys and values than devices, it must be a multiple of these.
	Tensor int
	// Pipeline is the number of stages into which the layers are cut, where a
	// single tensor passes, so that the largest stage is as small as can be.
	Pipeline int
	// MicroBatches is the number of micro-batches of a step, each of the
	// input's size; 0 means as many as stages. With the 1F1B schedule stage i,
	// from 0, keeps the activations of min(Pipeline - i, MicroBatches) of them
	// (arXiv:2104.04473, section 2.2).
	MicroBatches int
	// Sequence divides the tokens of what Tensor leaves whole among the same devices: the inputs of blocks, norms and
	// dropouts (sequence parallelism, arXiv:2205.05198, section 4.2.2). Split layers gather their input:
	//
	//   - "again": in the forward pass and again in the backward pass, as Megatron-LM's --sequence-parallel does
	//     (core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication);
	//   - "kept": once, and keep it, as PyTorch's DTensor does (torch.distributed.tensor.parallel, PrepareModuleInput),
	//     and with it torchtitan.
	Sequence string
	// By says who divides what replicas hold:
	//
	//   - "fsdp2": with ZeRO 3, PyTorch's fully_shard. Numbered blocks are gathered one after another, through buffers of
	//     their own, the next one while one runs backward; their gradients are summed up through a buffer too
	//     (torch/distributed/fsdp/_fully_shard, foreach_all_gather and foreach_reduce of 2.15). Parameters are gathered in
	//     the type of activations, and gradients summed up in that of gradients. Streams have memory of their own.
	//   - "deepspeed": with ZeRO 1 to 3, DeepSpeed 0.19 (deepspeed/runtime/zero). It collects gradients in buffers, copies
	//     those of a device to float32 as it steps, and with ZeRO 3 keeps the parameters whole that are needed again soon.
	By string
	// Ends, with By, divides the layers outside of the numbered blocks too: those before are gathered for themselves, those
	// after stay gathered until their backward pass, as in torchtitan (distributed/fsdp.py, apply_fsdp_to_decoder).
	// Without it, they are gathered as long as the model runs, as the root of fully_shard is.
	Ends bool
	// Experts is the number of devices that share the experts of each mixture, which are replicas of all else. Tokens are
	// sent to the device that has their expert, and back (torchtitan 0.3's models/common/token_dispatcher.py); each gets
	// as many as it sends if the experts are used equally, and upper bounds allow for twice as many.
	Experts int
	// Bucket is DeepSpeed's reduce_bucket_size, in elements; 0 is its default, 500,000,000.
	Bucket int
	// Overlap is DeepSpeed's overlap_comm, with which ZeRO 1 and 2 have two such buffers.
	Overlap bool
	// Reuse is DeepSpeed's stage3_max_reuse_distance, in elements; 0 is its default, 1,000,000,000.
	Reuse int
}

// Apply is the method of an Option.
func (s Sharding) Apply(c *setting.Config) { c.Sharding = setting.Sharding(s) }

// Machine is an Option that says on what GPU a model runs and how its kernels are loaded. Both
// decide how much memory CUDA's context takes, outside the allocator. The zero value of each means
// unknown, and widens the bounds.
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

// KVConfig describes the key/value cache of a transformer that is served. It grows token by token, as DynamicCache of
// transformers does, unless it is Static or llama.cpp serves. As an Option it adds the cache to the
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
	FullKVHeads   int         // KVHeads of these; 0 means the same
	FullHeadSize  int         // elements of one head's key, and of its value, in these; 0 means the same
	Fixed         int         // further elements of each sequence, whatever its length: windows of convolutions, keys and values of an encoder's output
	FixedType     alloc.DType // of Fixed; the zero value is the DType
	States        int         // further elements of each sequence in float32 whatever the DType: states of recurrent layers
	Prompt        int         // tokens of each sequence that ran last, at once, in transformers: its layers with a Window hold all of these until the next token. 0 means those of the input, or for KVCache none
	Static        bool        // allocated ahead, as servers do it: layers with a Window never hold more tokens than that, and no Prompt is needed
	DType         alloc.DType // of keys and values; the zero value is float16
	Keys          string      // the type in which keys and values are stored, if not the DType: llama.cpp's "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", or an element type
	Values        string      // that of values, if keys are stored in another, such as "float16"
}

// Apply is the method of an Option.
func (k KVConfig) Apply(c *setting.Config) { c.Cache = (*setting.KVConfig)(&k) }

// KVCache returns the memory of the keys and values of all tokens: layers x batch x tokens x KV heads
// elements of HeadSize and of ValueSize. With a Latent it is layers x batch x tokens x latent elements
// instead. Layers with a Window keep no more tokens than the window has, or with a Prompt those of the prompt and the
// Window - 1 tokens before it. The error says what is wrong with the configuration.
func KVCache(c KVConfig) (alloc.Bytes, error) {
	k, err := setting.KVCache(setting.KVConfig(c))
	return k.All(), err
}

// Loop is an Option that says how the training loop works. The zero value of each setting means
// unknown: the estimate is then that of the loops in PyTorch's tutorials, and the upper bounds are
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
