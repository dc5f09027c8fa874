package cuda

import (
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
)

// The reasons of ErrNoGPU.
const (
	ErrNoDriver      = errNoDriver
	ErrDriverTooOld  = errDriverTooOld
	ErrDriverRefuses = errDriverRefuses
	ErrNoDevice      = errNoDevice
)

// Opened is what Open returns.
type Opened = gpu

// Info describes the device.
func (d *gpu) Info() Info { return d.info }

// Handle is the CUcontext of a Device.
func (d *gpu) Handle() uintptr { return uintptr(d.context) }

// CurrentContext is the CUcontext that is current on this thread.
func CurrentContext() (handle uintptr) {
	lib, err := libcuda.Open()
	if err != nil {
		panic(err)
	}
	if code := lib.Func("cuCtxGetCurrent").Call(uintptr(unsafe.Pointer(&handle))); code != 0 {
		panic(Error(code))
	}
	return handle
}

// Version returns a call of cuDriverGetVersion.
func Version() (call func() error, err error) {
	drv, err := library()
	return func() error { _, err := drv.version(); return err }, err
}

// PinnedMemory is what Device.Pinned returns.
type PinnedMemory = pinned

// Use has copy's callback do what it likes with the memory.
func (p *pinned) Use(at alloc.Ptr, n int, do func(memory []byte)) error { return p.copy(at, n, do) }
