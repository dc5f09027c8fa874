package inputs

// What programs print, among other lines. A log may hold several of these kinds, and far from its beginning: see Scan.
var (
	BFC = &Kind{
		Name: "bfc", What: "a log in which a BFC allocator ran out of memory", Source: "TensorFlow, JAX, ONNX Runtime",
		Takes: []string{"explain", "show", "diff", "convert"},
		Words: []string{"bfc_allocator", "bfc_arena.cc"},
	}
	ErrorText = &Kind{
		Name: "error", What: "an out-of-memory error", Source: "PyTorch, JAX, llama.cpp, TensorFlow, CUDA",
		Takes: []string{"explain"},
		Words: errorWords,
	}
	EngineLog = &Kind{
		Name: "engine", What: "a log of an engine's memory", Source: "vLLM, SGLang, llama.cpp, ollama, TensorRT-LLM, DeepSpeed, torchtitan, torchtune",
		Takes: []string{"show", "explain", Measured},
		Words: engineWords,
	}
	// Text is a text whose beginning shows no kind. It is not in the table.
	Text = &Kind{Name: "log", What: "a text", Source: "programs", Takes: []string{"explain", "show"}}
)

// PyTorchStats are counters of PyTorch's allocator.
var PyTorchStats = &Kind{
	Name: "pytorch-stats", What: "a table of PyTorch's memory", Source: "torch.cuda.memory_summary, memory_stats",
	Takes: []string{"explain"},
	Words: []string{"PyTorch CUDA memory summary", "allocated_bytes.all.current"},
}

var logs = []*Kind{BFC, ErrorText, PyTorchStats, EngineLog}

// errorWords stand in the messages of memory that ran out.
var errorWords = []string{
	"out of memory", "Out of memory", "OUT_OF_MEMORY", "ErrorOutOfMemory", "out_of_memory", "OutOfDeviceMemory", "OUT_OF_DEVICE_MEMORY",
	"RESOURCE_EXHAUSTED", "Resource exhausted", "Tried to allocate", "OOM when allocating", "Allocation on device", "can't allocate memory",
	"ailed to allocate", "Device memory allocation of size", "nable to allocate", "ALLOC_FAILED", "ErrorMemoryAllocation", "cuda runtime error (2)",
}

// engineWords stand in the lines by which engines say what takes their memory.
var engineWords = []string{
	"Loading model weights took", "Model loading took", "Pre-loading model weights on", "Available KV cache memory", "KV cache size:", "model weights take", "KV cache is needed",
	"for the cache blocks", "stored in KV cache", "less than desired GPU memory utilization", "kv cache memory in use", "current vLLM instance can use", "Graph capturing finished", "Maximum concurrency for", // vLLM
	"Load weight begin", "Load weight end", "KV Cache is allocated", "max_total_num_tokens=", "Memory pool end", // SGLang
	"model buffer size", "KV buffer size", "RS buffer size", "compute buffer size", "projected to use", "memory breakdown [MiB]", // llama.cpp
	"layers.offload=", `msg="model weights"`, `msg="kv cache"`, // ollama
	"paged KV cache", "for execution context memory", "in memory usage profiling", // TensorRT-LLM
	"params, optim states and gradients", "see_memory_usage]", // DeepSpeed
	"memory usage for model:", "peak memory allocation:", // torchtitan, torchtune
}
