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
		c.Stored, c.Sizes = setting.Amount{}, nil
	})
}

// Weights sets the element type of weights and buffers.
func Weights(d alloc.DType) Option {
	return option(func(c *setting.Config) { c.Weights, c.Stored, c.Sizes = d, setting.Amount{}, nil })
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
// "transformers==4.46", "bitsandbytes==0.43.2". What is not said counts as new. These versions differ in memory:
//
//   - torch before 1.10: a ReLU that is not in place kept its input instead of its output.
//   - torch before 1.11: softmax kept its input too, and cuBLAS had no workspace in the cache.
//   - torch from 1.13 to 2.1: a mean keeps its input. Norms that are written in elementary operations
//     take a mean of squares.
//   - torch before 2.0: zero_grad kept the gradients' memory and optimizers went one by one, unless the
//     Loop says otherwise.
//   - transformers before 4.46: most models turned their logits into float32 before the loss read them.
//   - transformers before 4.45: a prompt had logits for all its tokens, not only for the last.
//   - bitsandbytes before 0.43.2: products kept their inputs for nothing, as long as the loop's code holds the loss (its pull
//     request 1270). Where it is not said, the upper bounds of training allow for such a version, unless torch is 2.4 or
//     later, which appeared in the same month as 0.43.2.
//   - bitsandbytes before 0.42: weights of four bits were unpacked to float16.
func Installed(packages ...string) Option {
	return option(func(c *setting.Config) { c.Installed = append(c.Installed, packages...) })
}

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
