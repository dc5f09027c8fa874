//go:build linux

package gpuemu

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// HoldClock stops the clock of all queued work, at 0. Then only Advance moves it, and calls that wait: they
// move it as far as they would have waited. A fill is done when the clock has reached its end.
func (c *Control) HoldClock() {
	atomic.StoreUint64(&c.state.base, 0) // the time at which the libraries first look
	atomic.StoreUint64(&c.state.advanced, 0)
	atomic.StoreUint32(&c.state.held, 1)
}

// Advance moves on a clock that HoldClock stopped.
func (c *Control) Advance(by time.Duration) { atomic.AddUint64(&c.state.advanced, uint64(max(by, 0))) }

// Now returns the time of a clock that HoldClock stopped.
func (c *Control) Now() time.Duration { return time.Duration(atomic.LoadUint64(&c.state.advanced)) }

// call calls a function of the emulated libcuda of this very process.
//
//go:uintptrescapes
func call(name string, args ...uintptr) error {
	lib, err := dylib.Open("libcuda.so.1")
	if err != nil {
		return fmt.Errorf("gpuemu: %s: %w", name, err)
	}
	f := lib.Func(name)
	if f == 0 {
		return fmt.Errorf("gpuemu: %s: the driver of this process is not the emulated one", name)
	}
	if code := f.Call(args...); code != 0 {
		return fmt.Errorf("gpuemu: %s: error %d", name, code)
	}
	return nil
}

// NewStream makes a stream on the primary context of a device, which must live.
func NewStream(device int) (stream uint64, err error) {
	err = current(device, func() error { return call("cuStreamCreate", uintptr(unsafe.Pointer(&stream)), 1) })
	return stream, err
}

// current does something while the primary context of a device is current.
func current(device int, do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ctx, old uintptr
	if err := call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&ctx)), uintptr(device)); err != nil {
		return err
	}
	err := call("cuCtxPushCurrent_v2", ctx)
	if err == nil {
		err = errors.Join(do(), call("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&old))))
	}
	return errors.Join(err, call("cuDevicePrimaryCtxRelease_v2", uintptr(device)))
}

// Work stands for a kernel.
type Work struct {
	Stream uint64
	Ptr    uint64 // the memory that it uses
	Size   uint64
	Time   time.Duration // how long it takes
	Writes bool          // Value to all of that memory, when it is done
	Value  byte
}

// Queue queues work on a stream that NewStream made, or on one that device 0 has from the beginning, such as CU_STREAM_PER_THREAD.
func Queue(w Work) error {
	value := -1
	if w.Writes {
		value = int(w.Value)
	}
	return current(0, func() error {
		return call("gpuemu_queue", uintptr(w.Stream), uintptr(w.Ptr), uintptr(w.Size), uintptr(w.Time.Nanoseconds()), uintptr(value))
	})
}
