package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// ComputedIn makes inference that of llama.cpp, with a compute buffer of so many bytes in
// place of what PyTorch's operations and allocator take.
func ComputedIn(buffer alloc.Bytes) Option {
	return func(c *Config) { c.Compute = buffer }
}
