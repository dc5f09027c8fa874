package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// Errors for errors.Is.
var (
	// ErrNoGPU says that there is no GPU to use: a program can go on with another device. The
	// error says why, with the driver's own Error, where it gave one.
	ErrNoGPU = errors.New("no GPU")

	// ErrDeviceLost says that the driver gave an error after which the device, or this
	// process's context on it, cannot be used: every later call fails too.
	ErrDeviceLost = errors.New("the device is lost to this process: restart the process; if that does not help, see the kernel's log for Xid messages")
)

// noGPU is why there is no GPU to use.
type noGPU string

const (
	// errNoDriver: the driver's library is not installed, or cannot be loaded.
	errNoDriver noGPU = "no NVIDIA driver: the library of CUDA's driver cannot be loaded"

	// errDriverTooOld: the library lacks a function that is needed. Its driver is
	// from before CUDA 11, or it is another library of that name.
	errDriverTooOld noGPU = "the NVIDIA driver is too old: CUDA 11 or later is needed"

	// errDriverRefuses: the driver does not start, for example because the kernel
	// runs another version of it.
	errDriverRefuses noGPU = "the NVIDIA driver does not start: does nvidia-smi work? After an update of the driver, restart the machine"

	// errNoDevice: the driver has no such device, or none at all, for this
	// process: see CUDA_VISIBLE_DEVICES.
	errNoDevice noGPU = "no such CUDA device is visible to this process"
)

func (e noGPU) Error() string { return string(e) }

func (e noGPU) Is(target error) bool { return target == ErrNoGPU }

// Error is an error of a driver call, by the driver's own number: a CUresult other than
// CUDA_SUCCESS. errors.Is(err, cuda.Error(2)) asks for CUDA_ERROR_OUT_OF_MEMORY.
type Error int

// Error returns the driver's name of the error, its number and its description:
// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
func (e Error) Error() string {
	f := errorTexts.Load()
	if f == nil {
		return fmt.Sprintf("CUDA error %d", int(e))
	}
	name := constant(f.name, e)
	if name == "" {
		return fmt.Sprintf("CUDA error %d", int(e))
	}
	return fmt.Sprintf("%s (%d): %s", name, int(e), constant(f.text, e))
}

// errorFunctions are the functions of the driver that describe its errors.
type errorFunctions struct{ name, text dylib.Func }

// errorTexts is set as soon as the driver is loaded.
var errorTexts atomic.Pointer[errorFunctions]

// constant calls a function that gives the address of a C string that never changes.
func constant(f dylib.Func, e Error) string {
	var s unsafe.Pointer
	if f.Call(uintptr(e), uintptr(unsafe.Pointer(&s))) != 0 || s == nil {
		return ""
	}
	return goString(s)
}

func goString(s unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(s, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(s), n))
}

// Is makes errors.Is find ErrDeviceLost in the codes after which the device is lost.
func (e Error) Is(target error) bool { return target == ErrDeviceLost && lost[e] }

// The codes that have a meaning here.
const (
	codeInvalidValue  = Error(1)
	codeOutOfMemory   = Error(2)
	codeUnavailable   = Error(46) // the device is lost, or its compute mode keeps this process out
	codeNoDevice      = Error(100)
	codeInvalidDevice = Error(101)
	codeInvalidHandle = Error(400)
	codeNotReady      = Error(600)
)

// lost are the codes after which, by the driver's documentation (CUDA 13.5), the context or
// the process cannot go on, and the codes for a device that fell off the bus.
var lost = map[Error]bool{
	4:               true, // the driver is shutting down
	codeUnavailable: true,
	214:             true, // ECC, uncorrectable
	220:             true, // NVLink, uncorrectable
	226:             true, // a hardware error, or a bad access over NVLink, kept to this process
	700:             true, // illegal address
	702:             true, // launch timeout
	709:             true, // the context is destroyed
	710:             true, // assert
	714:             true, // hardware stack error
	715:             true, // illegal instruction
	716:             true, // misaligned address
	717:             true, // invalid address space
	718:             true, // invalid program counter
	719:             true, // launch failed
	721:             true, // tensor memory leak
	810:             true, // the MPS client was ended
	911:             true, // external device
	999:             true, // unknown
}

// mapped joins an error of the driver with the error of this package, or of package alloc, that means the
// same.
func mapped(err error) error {
	code, ok := errors.AsType[Error](err)
	switch {
	case ok && code == codeUnavailable:
		return fmt.Errorf("%w (%w: or another process has the device for itself, see nvidia-smi -q -d COMPUTE)", ErrDeviceLost, err)
	case ok && lost[code]:
		return fmt.Errorf("%w (%w)", ErrDeviceLost, err)
	case ok && code == codeOutOfMemory:
		return fmt.Errorf("%w (%w)", alloc.ErrOutOfMemory, err)
	case ok && code == codeInvalidDevice:
		return fmt.Errorf("%w (%w)", errNoDevice, err)
	}
	return err
}

// mappedAddress is mapped for a call that an invalid address makes invalid.
func mappedAddress(err error) error {
	if errors.Is(err, codeInvalidValue) {
		return fmt.Errorf("%w (%w)", alloc.ErrUnknownPtr, err)
	}
	return mapped(err)
}
