package attach

import (
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// preset is a pair that has a name.
type preset struct {
	pair  string
	uses  []use
	cache *cache
	host  bool
}

// use says what memory is for if a function is among its callers.
type use struct {
	caller string // a part of its name
	kind   mem.Kind
}

// cache is a library that takes segments from the driver and hands out blocks of them. Both are watched.
type cache struct {
	alloc, free string // static probes: alloc has address, device, size and stream, free has the address
	instead     []function
}

// functions returns the functions to watch in a library: its static probes, and the functions to
// take if a file has none.
func (c *cache) functions(library string) []function {
	all := []function{
		{effect: reports, address: 0, device: 1, size: 2, stream: 3, note: c.alloc},
		{effect: takesBack, address: 0, note: c.free},
	}
	for _, f := range c.instead {
		f.without = c.alloc
		all = append(all, f)
	}
	for i := range all {
		all[i].library, all[i].block = library, true
	}
	return all
}

const pytorchCache = "c10::cuda::CUDACachingAllocator::Native::"

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
		{"ggml_backend_sched_reserve", "Compute"}, // where the two before have no symbols
		{"ggml_backend_sched_alloc_graph", "Compute"},
		{"llama_context::output_reserve", "Output"},
	}},
	// By CUDACachingAllocator.cpp. One of the two functions that free may be inlined in the other, and where it is not, both are
	// seen of one block.
	"pytorch": {pair: "libc10_cuda.so:" + pytorchCache + "NativeCachingAllocator::malloc," + pytorchCache + "local_raw_delete", cache: &cache{
		alloc: "pytorch:malloc", free: "pytorch:free", instead: []function{
			{effect: hands, address: 1, device: 2, size: 3, stream: 4, void: true, symbols: []string{pytorchCache + "NativeCachingAllocator::malloc"}},
			{effect: takesBack, address: 1, symbols: []string{pytorchCache + "NativeCachingAllocator::free"}},
			{effect: takesBack, address: 0, symbols: []string{pytorchCache + "local_raw_delete"}},
		},
	}},
	"pytorch-cpu": {pair: "libc10.so:c10::alloc_cpu,c10::free_cpu", host: true},

	"hip":        {pair: "libamdhip64.so:hipMalloc(size=2,out=1),hipFree"},
	"level-zero": {pair: "libze_loader.so:zeMemAllocDevice(size=3,out=6),zeMemFree(address=2)"},
	"cuvs":       {pair: "libcuvs_c.so:cuvsRMMAlloc(size=3,out=2),cuvsRMMFree(address=2)"},
	"icicle":     {pair: "libicicle_device.so:icicle_malloc(size=2,out=1),icicle_free"},
}

// Pairs returns the names of pairs that Config.Functions may have.
func Pairs() []string { return slices.Sorted(maps.Keys(presets)) }
