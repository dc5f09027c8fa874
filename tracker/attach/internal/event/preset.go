package event

import (
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// preset is a pair of functions with a name.
type preset struct {
	pair  string
	uses  []use
	cache *cachingAllocator
	host  bool
}

// use maps a caller to the kind of memory that it allocates.
type use struct {
	caller string // substring of a function name
	kind   mem.Kind
}

// cachingAllocator is a library that divides segments of the driver into blocks. Both are watched.
type cachingAllocator struct {
	alloc, free string // static probes: alloc has the arguments address, device, size and stream, free has the address
	instead     []Function
}

// functions returns the functions to watch in a library: its static probes, and the functions for
// files without them.
func (c *cachingAllocator) functions(library string) []Function {
	all := []Function{
		{Effect: LibraryReports, Address: 0, Device: 1, Size: 2, Stream: 3, Note: c.alloc},
		{Effect: LibraryFrees, Address: 0, Note: c.free},
	}
	for _, f := range c.instead {
		f.Without = c.alloc
		all = append(all, f)
	}
	for i := range all {
		all[i].Library, all[i].Block = library, true
	}
	return all
}

const PytorchCache = "c10::cuda::CUDACachingAllocator::Native::"

// presets are the functions of common libraries, by name. Their arguments are those in the headers:
// ggml-backend.h, hip_runtime_api.h, ze_api.h, cuvs/core/c_api.h, icicle/runtime.h.
var presets = map[string]preset{
	// All backends of ggml allocate through it, in llama.cpp, ollama, LocalAI, yzma and
	// whisper.cpp.
	"ggml": {pair: "libggml-base.so:ggml_backend_buft_alloc_buffer(size=2),ggml_backend_buffer_free", uses: []use{
		{"llama_kv_cache", "KV"},
		{"llama_memory_recurrent", "KV"},
		{"whisper_kv_cache_init", "KV"},
		{"load_tensors", "Weights"},
		{"whisper_model_load", "Weights"},
		{"ggml_gallocr_reserve", "Compute"},
		{"ggml_gallocr_alloc_graph", "Compute"},
		{"ggml_backend_sched_reserve", "Compute"}, // for builds in which the two before have no symbols
		{"ggml_backend_sched_alloc_graph", "Compute"},
		{"llama_context::output_reserve", "Output"},
	}},
	// By CUDACachingAllocator.cpp. One of the two functions that free may be inlined
	// into the other; otherwise both are seen for one block.
	"pytorch": {pair: "libc10_cuda.so:" + PytorchCache + "NativeCachingAllocator::malloc," + PytorchCache + "local_raw_delete", cache: &cachingAllocator{
		alloc: "pytorch:malloc", free: "pytorch:free", instead: []Function{
			{Effect: LibraryAllocates, Address: 1, Device: 2, Size: 3, Stream: 4, Void: true, Symbols: []string{PytorchCache + "NativeCachingAllocator::malloc"}},
			{Effect: LibraryFrees, Address: 1, Symbols: []string{PytorchCache + "NativeCachingAllocator::free"}},
			{Effect: LibraryFrees, Address: 0, Symbols: []string{PytorchCache + "local_raw_delete"}},
		},
	}},
	"pytorch-cpu": {pair: "libc10.so:c10::alloc_cpu,c10::free_cpu", host: true},

	"hip":        {pair: "libamdhip64.so:hipMalloc(size=2,out=1),hipFree"},
	"level-zero": {pair: "libze_loader.so:zeMemAllocDevice(size=3,out=6),zeMemFree(address=2)"},
	"cuvs":       {pair: "libcuvs_c.so:cuvsRMMAlloc(size=3,out=2),cuvsRMMFree(address=2)"},
	"icicle":     {pair: "libicicle_device.so:icicle_malloc(size=2,out=1),icicle_free"},
}

// PairNames returns the names of the presets.
func PairNames() []string { return slices.Sorted(maps.Keys(presets)) }
