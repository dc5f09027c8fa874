// Package estimate computes how much memory a model needs, before it runs:
// parameters, activations, what training keeps for the backward pass, optimizer
// states, and the peak of each, layer by layer.
//
//	layers := []nn.Layer{
//		nn.Conv2d{In: 3, Out: 64, Kernel: 3, Padding: 1},
//		nn.ReLU{InPlace: true},
//		nn.Flatten{},
//		nn.Linear{In: 64 * 32 * 32, Out: 10},
//	}
//	r, err := estimate.Model(layers, estimate.InputShape(8, 3, 32, 32), estimate.Train(estimate.AdamW))
//	if err == nil && !r.Fits(16*alloc.GiB) {
//		fmt.Println(r)
//	}
//
// The layers are in package nn. Sizes are bytes, and shapes are PyTorch's, batch first.
// An error names the layer by its path, as named_modules does, or the option. This package reads no files and asks no
// device.
//
// # Where to begin
//
// Package zoo has well-known models, package checkpoint reads model files, and package nn has the
// layers for models of your own. Model estimates one, and options say how it runs: Train, Precision, Tokens.
// MaxBatch finds the batch that fits, KVCache sizes the cache for serving. Package llamacpp is about llama.cpp.
//
// # How it is done
//
// The layers record one forward pass on a tape, operation by operation, as
// autograd does: which tensors each reads, which it makes, which it overwrites or
// views, and which it keeps for the backward pass. A tensor that two operations
// keep is one storage and counts once. The peak is found by running the tape:
// a tensor dies after its last use, or when the operation that keeps it has been
// passed backward; gradients of activations live until they are used up, gradients
// of parameters until the step is over.
//
// # What a device shows
//
// A Footprint is what the process takes of its device. The allocations and frees
// of loading and of two training steps, in PyTorch's order, go through cache.Cache: that gives
// what is reserved, with rounding, fragmentation and inactive blocks, and the smallest device on
// which the run completes. The CUDA context is added, from a table of measurements.
// Fits compares the upper bound of what is needed. Loop, PyTorch and Machine describe
// the training loop and the machine; what they leave open widens the band.
//
// # How far to trust it
//
// testdata/torch has what PyTorch was measured to do with known models on the
// CPU, transformers in bfloat16 and with checkpointed blocks too. There, parameters and
// shapes are equal, and the bytes kept for backward and the peaks are off by what the
// Band of each says, the worst deviation found; models with recurrent layers, and encoders
// with decoders, have bands of their own, which are wide. A note of the report names the kinds of
// layers that nobody was found to have measured on a GPU. Convolutions were measured in float32 only.
// The page docs/estimate.md has the estimates of runs that others measured on GPUs, and
// says how many measurements each band of a Footprint rests on. Report.Beside puts an estimate beside a run of yours.
//
// # What is not counted
//
// Workspaces of cuDNN except those of the weights' gradients of 3 x 3 convolutions in float32,
// communication buffers except those of DistributedDataParallel, and other processes.
//
// # Concurrency and cost
//
// All functions may be called from several goroutines; layers and reports are
// never changed. ResNet-152 takes about 3 ms, a Llama of 80 blocks about 5 ms, most of it in
// the allocator; tensors alone (OnCPU) take 1 ms.
package estimate
