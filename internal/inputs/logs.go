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

var logs = []*Kind{BFC, ErrorText}

// errorWords begin the messages of memory that ran out.
var errorWords = []string{
	"out of memory", "Out of memory", "RESOURCE_EXHAUSTED", "ResourceExhaustedError", "OOM when allocating",
	"failed to allocate", "Failed to allocate", "unable to allocate", "ALLOC_FAILED",
}
