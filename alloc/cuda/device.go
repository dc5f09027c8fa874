//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Device is an open CUDA device. Make one with Open or FromContext.
type Device struct {
	name    string
	ordinal int
	context cu.CUContext
	release func() error // gives back what Open took

	mu     sync.RWMutex // held for reading during each call
	closed bool
}

var (
	_ alloc.Device       = (*Device)(nil)
	_ alloc.Synchronizer = (*Device)(nil)
	_ alloc.Copier       = (*Device)(nil)
	_ alloc.Timer        = (*Device)(nil)
)

// Open opens the device of that index among those that the process sees, and
// retains its primary context: the one that CUDA's runtime and its libraries
// use too. The caller closes it.
func Open(ordinal int) (*Device, error) {
	device, err := cu.GetDevice(min(max(ordinal, -1), math.MaxInt32)) // which takes 32 bits of it
	if err != nil {
		n, _ := cu.NumDevices()
		return nil, fmt.Errorf("open CUDA device %d of %d, counted from 0: %w", ordinal, n, mapped(err))
	}
	context, err := device.RetainPrimaryCtx()
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: primary context: %w", ordinal, mapped(err))
	}
	name, err := device.Name()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open CUDA device %d: name: %w", ordinal, mapped(err)), device.ReleasePrimaryCtx())
	}
	return &Device{name: name, ordinal: ordinal, context: context, release: device.ReleasePrimaryCtx}, nil
}

// FromContext is a Device over a context that the program already has, and
// keeps: closing the Device leaves the context alone. The context must outlive it.
func FromContext(ctx cu.Context) (*Device, error) {
	d := &Device{context: ctx.CUDAContext(), release: func() error { return nil }}
	err := d.do(func() (err error) {
		device, err := cu.CurrentDevice()
		if err != nil {
			return err
		}
		d.ordinal = int(device)
		d.name, err = device.Name()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("device of context %v: %w", d.context, mapped(err))
	}
	return d, nil
}

// Name returns the device's product name.
func (d *Device) Name() string { return d.name }

// Ordinal returns the device's index.
func (d *Device) Ordinal() int { return d.ordinal }

// String returns the name and the ordinal: "NVIDIA A100-SXM4-40GB 0".
func (d *Device) String() string { return fmt.Sprintf("%s %d", d.name, d.ordinal) }

// do makes the context current on this thread for the time of a call.
func (d *Device) do(call func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return alloc.ErrClosed
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(d.context); err != nil {
		return err
	}
	err := call()
	// What call did is done, so a pop that fails must not turn it into a failure:
	// the context stays current on this thread, and every call here brings its own.
	_, _ = cu.PopCurrentCtx()
	return err
}

// Alloc gives n bytes by cuMemAlloc. The errors are *alloc.OutOfMemoryError
// with the driver's numbers, *alloc.SizeError when n is negative, ErrDeviceLost,
// alloc.ErrClosed. Zero bytes take one, to have an address of their own.
func (d *Device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, &alloc.SizeError{Requested: n, Reason: "negative"}
	}
	var p cu.DevicePtr
	err := d.do(func() (err error) {
		p, err = cu.MemAlloc(int64(max(n, 1)))
		return err
	})
	switch {
	case errors.Is(err, cu.OutOfMemory), errors.Is(err, cu.InvalidValue) && d.tooSmallFor(n):
		return 0, d.outOfMemory(n, err)
	case err != nil:
		return 0, fmt.Errorf("alloc %v on %v: %w", n, d, mapped(err))
	}
	return alloc.Ptr(p), nil
}

// tooSmallFor reports whether n is more than the device has: a size that a driver may
// call invalid.
func (d *Device) tooSmallFor(n alloc.Bytes) bool {
	info, err := d.MemInfo()
	return err == nil && n > info.Total
}

// Free gives an address back by cuMemFree. The driver cannot tell an address
// freed before from one that it never gave: both are alloc.ErrUnknownPtr.
func (d *Device) Free(p alloc.Ptr) error {
	err := d.do(func() error {
		if p == 0 {
			return cu.InvalidValue // the driver takes it for a free of nothing
		}
		return cu.MemFree(cu.DevicePtr(p))
	})
	if err != nil {
		return fmt.Errorf("free %v on %v: %w", p, d, mappedAddress(err))
	}
	return nil
}

// MemInfo asks the driver, by cuMemGetInfo.
func (d *Device) MemInfo() (alloc.MemInfo, error) {
	var free, total int64
	err := d.do(func() (err error) {
		free, total, err = cu.MemInfo()
		return err
	})
	if err != nil {
		return alloc.MemInfo{}, fmt.Errorf("memory info of %v: %w", d, mapped(err))
	}
	return alloc.MemInfo{Free: alloc.Bytes(free), Total: alloc.Bytes(total)}, nil
}

// Close gives back the context that Open took. What was allocated lives on if
// somebody else in the process holds the primary context, and is freed with it if
// not. After Close every call is alloc.ErrClosed, Close too.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("close %v: %w", d, alloc.ErrClosed)
	}
	d.closed = true
	if err := d.release(); err != nil {
		return fmt.Errorf("close %v: %w", d, mapped(err))
	}
	return nil
}
