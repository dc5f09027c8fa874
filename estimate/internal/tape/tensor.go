package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Tensor is an activation that the layers pass on: a shape and an element
// type over a storage, which views of a tensor and operations in place share.
// Tensors come from the Tape and are good for that one only; the zero Tensor is none.
type Tensor struct {
	Shape alloc.Shape
	DType alloc.DType

	Tape    *Tape
	Storage int32 // index on the tape
	Grad    bool  // the loss depends on a parameter through it
	split   bool  // each device of a tensor parallel group holds a part
	Strewn  bool  // its rows do not lie one after another, as after Permute
}

// NeedsGrad reports whether the backward pass computes a gradient of x, which
// decides what many operations keep.
func (x Tensor) NeedsGrad() bool { return x.Grad }

// Dim is the length of a dimension, counted from the end where it is negative, and 1 where there is
// none, as after an error.
func (x Tensor) Dim(i int) int {
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		return 1
	}
	return x.Shape[i]
}
