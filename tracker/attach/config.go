package attach

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Config says how to watch. The zero Config sets probes in the libcuda that a program on this
// machine would load.
type Config struct {
	// Libraries are the files of libcuda to probe. If nil, they are those that a program on this
	// machine would load. Other copies are found when a process has loaded them.
	Libraries []string
	// Functions are watched in place of the driver's functions, to see what an allocator inside a
	// library does: one function that allocates and one that frees, or one function that both are reported to.
	// From the driver only contexts are reported then. Each is written as LIBRARY:ALLOC,FREE:
	//
	//	libpool.so:pool_alloc,pool_free
	//	libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)
	//
	// The library is a file's path, or its name as "libpool.so", which stands for "libpool.so.1"
	// too. It may be the program itself. A library given by its name is found where the loader
	// would, or when a process has loaded it. The functions have their names in the library's
	// symbol table, or for C++ and Rust those in the source without parameters:
	// "arena::Pool::take".
	//
	// The parentheses say which arguments have the size in bytes and the address, counted from 1; the
	// first argument of a method is its object. "out" is an argument that points to where the function
	// writes the address. Without parentheses, the first argument of ALLOC is the size, ALLOC returns
	// the address, and the first argument of FREE is the address. With "out", ALLOC returns an error
	// code, 0 for success, unless "void", the library's DWARF or the mangled name of a template says that
	// it returns nothing, or a struct, for which C++ passes a hidden pointer as the first argument:
	//
	//	libc10_cuda.so:c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(size=4,out=2,void),...
	//
	// "signed" means that one function reports both. A size below 0 is a free:
	//
	//	libc10.so:c10::reportMemoryUsageToProfiler(size=2,address=1,signed)
	//
	// A name of Pairs, such as "ggml", stands for the functions of a well-known library; NAME=LIBRARY
	// is the same in another file. "pytorch" also watches the driver: one Source then has the blocks,
	// and another the segments that the blocks are parts of.
	Functions []string
	// Preload puts a small library in front of libcuda instead of setting probes. It needs a C
	// compiler, but no privileges, and watches only programs that Watcher.Start
	// starts, and those that they start.
	Preload bool
	// RingBufferBytes is the size of the ring buffer of unread events, rounded up to a power of two. A call
	// takes 104 bytes; an allocation takes 160, and 8 for each native frame of its stack, 16 for each
	// frame of Python. 0 means 64 MiB: some 150,000 allocations on stacks of 30 frames.
	RingBufferBytes int
	// maxEvents is how many events the history of a source keeps; 0 is 65,536.
	maxEvents int
	// Driver says how much memory the devices and the processes use, as nvml.Open opens it. The Watcher does
	// not close it. Without it these values are -1, in levels and as Source.PriorBytes.
	Driver nvml.Source
	// maxStacks is how many different call stacks of a process are kept; 0 is 65,536.
	maxStacks int

	pairs       []functionPair // parsed from Functions
	single      bool           // for tests: attach probes one by one, as kernels before 6.6 need it
	searchEvery time.Duration  // how often the processes are searched for libraries that they opened; 0 is 0.1 s
}

const (
	defaultRing   = 64 << 20
	defaultEvents = 1 << 16
	defaultStacks = 1 << 16
	minRing       = 1 << 16
)

// complete replaces unset fields by their defaults.
func (cfg Config) complete() Config {
	cfg.RingBufferBytes = powerOfTwo(max(minRing, cmp.Or(cfg.RingBufferBytes, defaultRing)))
	cfg.maxEvents = cmp.Or(cfg.maxEvents, defaultEvents)
	cfg.maxStacks = cmp.Or(cfg.maxStacks, defaultStacks)
	cfg.searchEvery = cmp.Or(cfg.searchEvery, 100*time.Millisecond)
	return cfg
}

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

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
	instead     []function
}

// functions returns the functions to watch in a library: its static probes, and the functions for
// files without them.
func (c *cachingAllocator) functions(library string) []function {
	all := []function{
		{effect: libraryReports, address: 0, device: 1, size: 2, stream: 3, note: c.alloc},
		{effect: libraryFrees, address: 0, note: c.free},
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
		{"ggml_backend_sched_reserve", "Compute"}, // for builds in which the two before have no symbols
		{"ggml_backend_sched_alloc_graph", "Compute"},
		{"llama_context::output_reserve", "Output"},
	}},
	// By CUDACachingAllocator.cpp. One of the two functions that free may be inlined
	// into the other; otherwise both are seen for one block.
	"pytorch": {pair: "libc10_cuda.so:" + pytorchCache + "NativeCachingAllocator::malloc," + pytorchCache + "local_raw_delete", cache: &cachingAllocator{
		alloc: "pytorch:malloc", free: "pytorch:free", instead: []function{
			{effect: libraryAllocates, address: 1, device: 2, size: 3, stream: 4, void: true, symbols: []string{pytorchCache + "NativeCachingAllocator::malloc"}},
			{effect: libraryFrees, address: 1, symbols: []string{pytorchCache + "NativeCachingAllocator::free"}},
			{effect: libraryFrees, address: 0, symbols: []string{pytorchCache + "local_raw_delete"}},
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
