package inputs

// What programs print, among other lines. A log may hold several of these kinds, and far from its beginning: see Scan.
var (
	BFC = &Kind{
		Name: "bfc", What: "a log in which a BFC allocator ran out of memory", Source: "TensorFlow, JAX, ONNX Runtime",
		Sign: "lines of bfc_allocator or bfc_arena", Takes: []string{"explain", "show", "diff", "convert"},
		Words: []string{"bfc_allocator", "bfc_arena"},
	}
	ErrorText = &Kind{
		Name: "error", What: "an out-of-memory error", Source: "PyTorch, JAX, llama.cpp, TensorFlow, CUDA",
		Sign: `a message such as "CUDA out of memory"`, Takes: []string{"explain"},
		Words: errorWords,
	}
	// Text is a text whose beginning shows no kind. It is not in the table.
	Text = &Kind{Name: "log", What: "a text", Source: "programs", Sign: "text", Takes: []string{"explain", "show"}}
)

// PyTorchStats are counters of PyTorch's allocator.
var PyTorchStats = &Kind{
	Name: "pytorch-stats", What: "a table of PyTorch's memory", Source: "torch.cuda.memory_summary, memory_stats",
	Sign: `a table with "CUDA memory summary", or JSON with "allocated_bytes.all.current"`, Takes: []string{"explain"},
	Words: []string{"PyTorch CUDA memory summary", "allocated_bytes.all.current"},
}

var logs = []*Kind{BFC, ErrorText, PyTorchStats}

// errorWords stand in the messages of memory that ran out.
var errorWords = []string{
	"out of memory", "Out of memory", "OUT_OF_MEMORY", "OutOfMemory", "out_of_memory", "OutOfDeviceMemory",
	"RESOURCE_EXHAUSTED", "OOM when allocating", "Allocation on device", "can't allocate memory",
	"ailed to allocate", "unable to allocate", "ALLOC_FAILED", "ErrorMemoryAllocation", "cuda runtime error (2)",
}
