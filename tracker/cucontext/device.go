//go:build cuda && cgo

package cucontext

import (
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

// FromContext returns a cuda.Device over a context that the program already has. The
// program keeps the context: closing the Device leaves it alone. The context must outlive it.
// The errors are cuda.Open's.
func FromContext(ctx cu.Context) (*cuda.Device, error) {
	handle := ctx.CUDAContext()
	return cuda.FromHandle(*(*uintptr)(unsafe.Pointer(&handle))) // its only field is the CUcontext
}

var _ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
