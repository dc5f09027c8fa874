package attach

import (
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// preset is a Pair that has a name.
type preset struct {
	pair string
	uses []use
}

// use is what memory is for if a function is among the callers.
type use struct {
	caller string // a part of its name
	kind   mem.Kind
}

// presets are functions of libraries that are often used, by the name of what they belong to. Their arguments are
// those of the libraries' headers: ggml-backend.h, hip_runtime_api.h, ze_api.h, cuvs/core/c_api.h, icicle/runtime.h.
var presets = map[string]preset{
	// All backends of ggml allocate through it: those of llama.cpp, ollama, LocalAI, yzma, whisper.cpp.
	"ggml": {"libggml-base.so:ggml_backend_buft_alloc_buffer(size=2),ggml_backend_buffer_free", []use{
		{"llama_kv_cache", "KV"},
		{"llama_memory_recurrent", "KV"},
		{"load_tensors", "Weights"},
		{"ggml_gallocr_reserve", "Compute"},
		{"ggml_gallocr_alloc_graph", "Compute"},
	}},
	"hip":        {pair: "libamdhip64.so:hipMalloc(size=2,out=1),hipFree"},
	"level-zero": {pair: "libze_loader.so:zeMemAllocDevice(size=3,out=6),zeMemFree(address=2)"},
	"cuvs":       {pair: "libcuvs_c.so:cuvsRMMAlloc(size=3,out=2),cuvsRMMFree(address=2)"},
	"icicle":     {pair: "libicicle_device.so:icicle_malloc(size=2,out=1),icicle_free"},
}

// Pairs returns the names that ParsePair knows.
func Pairs() []string { return slices.Sorted(maps.Keys(presets)) }
