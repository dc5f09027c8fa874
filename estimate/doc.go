// Package estimate tells how much memory a model needs before it runs:
// parameters, activations, what training keeps for the backward pass, optimizer
// states, and the peak of each, layer by layer.
//
//	layers := []estimate.Layer{
//		estimate.Conv2d{In: 3, Out: 64, Kernel: 3, Padding: 1},
//		estimate.ReLU{InPlace: true},
//		estimate.Flatten{},
//		estimate.Linear{In: 64 * 32 * 32, Out: 10},
//	}
//	r, err := estimate.Model(layers, estimate.Input(8, 3, 32, 32), estimate.Train(estimate.AdamW))
//	if err == nil && !r.Fits(16*alloc.GiB) {
//		fmt.Println(r)
//	}
//
// Layers are values named after PyTorch's modules, with its defaults; the zero
// value of a setting is PyTorch's default. A type of your own that has the two
// methods of Layer is a layer too. Package zoo has well-known models, Open reads
// model files, Transformer builds the families that a config.json describes,
// MaxBatch finds the batch that fits, and KVCache sizes the cache for serving.
//
// # How it is done
//
// The layers record one forward pass on a Tape, operation by operation, as
// autograd does: which tensors each reads, which it makes, which it overwrites or
// views, and which it keeps for the backward pass. A tensor that two operations
// keep is one storage and counts once. The peak is found by running the tape:
// a tensor dies after its last use, or when the operation that keeps it has been
// passed backward; gradients of activations live until they are used up, gradients
// of parameters until the step is over.
//
// # How far to trust it
//
// testdata/torch has what PyTorch was measured to do with known models on the
// CPU, transformers in bfloat16 and with checkpointed blocks too. There, parameters and
// shapes are equal, and the bytes kept for backward and the peaks are off by what the
// Band of each says, the worst deviation found; models with recurrent layers have a
// band of their own, which is wide. Convolutions were measured in float32 only, and peaks
// on CUDA not yet; until then they carry the same bands, and the report says so.
//
// # What is not counted
//
// The CUDA context, workspaces of cuBLAS and cuDNN, the rounding, fragmentation
// and cached blocks of an allocator, communication buffers, and other processes.
//
// # Concurrency and cost
//
// All functions may be called from several goroutines; layers and reports are
// never changed. ResNet-152 takes about 0.4 ms, a Llama of 80 blocks about 0.7 ms.
package estimate
