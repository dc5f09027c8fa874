package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// In is x in an element type.
func (f *Flow) In(d alloc.DType, x Tensor) Tensor {
	if x.DType == d {
		return x
	}
	return f.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: d})
}
