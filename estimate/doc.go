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
//	r, err := estimate.Model(layers, estimate.InputShape(8, 3, 32, 32), estimate.Train("adamw"))
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
// The layers record one forward pass on a tape, operation by operation, as autograd does: which
// tensors each operation reads, makes, overwrites, views, and keeps for the backward pass. A tensor
// that two operations keep counts once. Running the tape gives the peak. A tensor lives until its
// last use, or until the backward pass has gone past the operation that keeps it. Gradients of
// activations live until they are used, gradients of parameters until the step is over.
//
// # What a device shows
//
// A Footprint is what the process takes of its device. The allocations and frees of loading and of
// two training steps, in PyTorch's order, go through cache.Cache. That gives the reserved memory,
// with rounding, fragmentation and inactive blocks, and the smallest device on which the run
// completes. CUDA's context is added, from a table of measurements. Fits compares the upper bound
// with the budget. Loop, Installed and Machine describe the training loop and the machine; what they
// leave open makes the bounds wider.
//
// # How far to trust it
//
// On the CPU, PyTorch was measured with known models (testdata/torch). Parameters and shapes are
// equal. The bytes retained for the backward pass and the peaks differ at most by the bounds of each.
// Models with recurrent layers, and those with an encoder and a decoder, have wide bounds of their
// own. Convolutions were measured in float32 only.
//
// On GPUs, docs/estimate.md compares estimates with runs that others measured. A note of the report
// names layers of which no measurement on a GPU is known. Report.Beside puts an estimate beside a
// run of yours.
//
// # What is not counted
//
// Workspaces of cuDNN except those of the weights' gradients of 3 x 3 convolutions in float32,
// communication buffers except those of DistributedDataParallel, and other processes.
//
// # Concurrency and cost
//
// All functions may be called from several goroutines; layers and reports are never changed. An
// estimate of ResNet-152 takes about 3 ms, one of a Llama with 80 blocks about 5 ms, most of it in
// the allocator. With OnCPU, which needs no allocator, it takes 1 ms.
package estimate
