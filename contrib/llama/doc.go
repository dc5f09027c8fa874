// Package memtrack enters the models and contexts of llama.cpp in a tracker's ledger, for Go programs that call
// its library without cgo, as yzma does.
//
//	llama.Load(folder)
//	lib, err := memtrack.Open(filepath.Join(folder, "libllama.so"), tr)
//	...
//	model, err := llama.ModelLoadFromFile(path, llama.ModelDefaultParams())
//	err = lib.AddModel(uintptr(model), "qwen3")
//	...
//	err = lib.Remove(uintptr(model))
//	llama.ModelFree(model)
//
// The package is a module of its own, and not for Windows. Its import path ends in llama:
//
//	import memtrack "github.com/gpumemtrack/gpumemtrack/contrib/llama"
//
// # What is entered
//
// The buffers of a model, with the kind Weights, and those of a context, with the kinds KV and
// Compute, summed by device. These kinds are also those of gpumemtrack attach --functions ggml. The
// call site is the line that adds them, the label is the name. The sizes are those of llama.cpp's
// memory breakdown, at the time of the call. llama.cpp makes a context's buffers for the largest
// batch at once.
//
// The ledger has one type of memory for the host, pinned. All that llama.cpp holds in host memory
// is entered as pinned, even if it is not, as with a model that is mapped from its file.
//
// # Without the breakdown
//
// llama.cpp's C interface does not have the breakdown, and its C++ functions are read on Linux only, and from a library that was
// built with GCC's standard library. Elsewhere a model takes what llama_model_size says, the sum of its tensors. A context takes
// what llama_state_get_size says, which is less than its memory. Both are then entered as the first device's.
//
// # What is not
//
// The buffer of a context's results, adapters, samplers, and what a backend takes for itself, such as the pools of CUDA.
// gpumemtrack attach --functions ggml sees the first two, and gpumemtrack attach the last.
//
// # Concurrency
//
// A Library may be used from any goroutine. Do not free a handle while it is added.
package memtrack
