package checkpoint

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// ComputeBuffer is estimate.Transformer.ComputeBuffer of the model. The errors are its, and those
// of Layers.
func (c *File) ComputeBuffer(l estimate.LlamaCpp) (alloc.Bytes, error) {
	if _, err := c.Architecture(); err != nil {
		return 0, err
	}
	return c.architecture.Transformer.ComputeBuffer(l)
}
