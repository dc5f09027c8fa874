package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

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
}

// Apply is the method of an Option.
func (s Sharding) Apply(c *setting.Config) { c.Sharding = setting.Sharding(s) }
