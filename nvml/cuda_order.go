package nvml

import "github.com/gpumemtrack/gpumemtrack/internal/libcuda"

// cudaUUIDs asks CUDA for its devices, in the order of their ordinals. It makes no
// context, so that it takes no memory of theirs.
func cudaUUIDs() ([]string, error) { return libcuda.UUIDs() }
