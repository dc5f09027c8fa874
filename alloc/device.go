package alloc

import (
	"fmt"
	"time"
)

// Ptr is an address in a device's memory. Zero is no address.
type Ptr uint64

// String prints the address in hexadecimal: "0x7f0000000200".
func (p Ptr) String() string { return fmt.Sprintf("0x%x", uint64(p)) }

// MemInfo is a device's memory as its driver counts it, all processes together.
type MemInfo struct {
	Free, Total Bytes
}

// Used returns the memory that is not free.
func (m MemInfo) Used() Bytes { return m.Total - m.Free }

// Device is what a driver must offer. Its methods may be called from any
// goroutine.
//
// Alloc gives n bytes of device memory, or a *OutOfMemoryError, or another
// error; a failed Alloc changes nothing. Zero bytes are a valid request and
// give an address of their own, which is freed like any other; a negative n is
// a *SizeError.
//
// Free takes an address that Alloc gave, once. A second Free is ErrDoubleFree
// where the device can tell, an address that the device never gave is
// ErrUnknownPtr; either changes nothing.
//
// MemInfo asks the driver. Name is the device's product name, Ordinal its index
// among the devices that the process sees.
type Device interface {
	Alloc(n Bytes) (Ptr, error)
	Free(p Ptr) error
	MemInfo() (MemInfo, error)
	Name() string
	Ordinal() int
}

// SizedAllocator is a Device that takes more for a request than was asked, and
// says how much. The Cache is one.
type SizedAllocator interface {
	// AllocSized is Alloc, and returns the size of the block too.
	AllocSized(n Bytes) (p Ptr, allocated Bytes, err error)
}

// Synchronizer is a Device that can wait until all work queued on it is done.
type Synchronizer interface {
	Synchronize() error
}

// Copier is a Device that can copy between its memory and the program's. The
// copy is complete when the call returns. An address may lie inside an
// allocation; the copy must not run past the allocation's end.
type Copier interface {
	CopyToDevice(dst Ptr, src []byte) error
	CopyToHost(dst []byte, src Ptr) error
}

// Timer is a Device that can time an interval of its own work.
type Timer interface {
	// StartInterval marks the interval's beginning behind the work queued so far.
	StartInterval() (Interval, error)
}

// Interval is a stretch of a device's work, being timed.
type Interval interface {
	// Stop marks the end behind the work queued so far; it does not wait.
	Stop() error
	// Elapsed waits until the device has reached the end and returns the time
	// between the marks. It releases the interval: call it once, after Stop.
	Elapsed() (time.Duration, error)
}

// As returns the first T among dev and the devices that it wraps, one in the
// other, as errors.As does: the Copier under a Cache, for example. A device
// that wraps another has a method Unwrap() Device.
func As[T any](dev Device) (found T, ok bool) {
	for dev != nil {
		if found, ok = dev.(T); ok {
			return found, true
		}
		wrapper, wraps := dev.(interface{ Unwrap() Device })
		if !wraps {
			break
		}
		dev = wrapper.Unwrap()
	}
	return found, false
}
