package setting

// Backend is where the model runs: kernels differ in what they keep.
type Backend uint8

// The backends. On the CPU, PyTorch's dropout keeps a mask of the type of the
// activations; on CUDA one of a byte an element.
const (
	CUDA Backend = iota
	CPU
)

// String is the name of the backend.
func (b Backend) String() string {
	if b == CPU {
		return "CPU"
	}
	return "CUDA"
}

// OneDNNThreads is the number of threads of the CPU with which the peaks were measured. The
// workspaces of oneDNN grow with them.
const OneDNNThreads = 2
