package cuda

import (
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// Handle is the CUcontext of a Device.
func (d *Device) Handle() uintptr { return uintptr(d.context) }

// NewStream is a stream of the device's context, which lives as long as that.
func (d *Device) NewStream() (s alloc.Stream, err error) {
	lib, err := dylib.Open(names()...)
	if err != nil {
		return 0, err
	}
	err = d.do(func() error {
		if code := lib.Func("cuStreamCreate").Call(uintptr(unsafe.Pointer(&s)), 0); code != 0 {
			return Error(code)
		}
		return nil
	})
	return s, err
}

// CurrentContext is the CUcontext that is current on this thread.
func CurrentContext() (handle uintptr) {
	lib, err := dylib.Open(names()...)
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
