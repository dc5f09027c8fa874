package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Device is an open CUDA device. Make one with Open or FromHandle.
type Device struct {
	driver  *driver
	info    Info
	context context
	release func() error // gives back what Open took

	mu     sync.RWMutex // held for reading during each call
	closed bool

	events openEvents

	reservedMu sync.Mutex // taken before mu
	reserved   map[alloc.Ptr]*reservation
}

var (
	_ alloc.Device         = (*Device)(nil)
	_ ability.Synchronizer = (*Device)(nil)
	_ alloc.Copier         = (*Device)(nil)
	_ ability.Filler       = (*Device)(nil)
	_ ability.PeerCopier   = (*Device)(nil)
	_ ability.Timer        = (*Device)(nil)
)

// Open loads the driver, if nothing has yet, opens the device of that index among those
// that the process sees, and retains its primary context: the one that CUDA's
// runtime and its libraries use too. The caller closes it.
//
// Where there is no GPU to use the error is ErrNoGPU. With ErrDeviceLost and alloc.ErrOutOfMemory there is a
// device, but it cannot be opened now.
func Open(ordinal int) (*Device, error) {
	drv, err := library()
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: %w", ordinal, err)
	}
	dev, err := drv.device(ordinal)
	if err != nil {
		n, _ := drv.count()
		return nil, fmt.Errorf("open CUDA device %d of %d, counted from 0: %w", ordinal, n, mapped(err))
	}
	info, err := drv.describe(dev)
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: %w", ordinal, mapped(err))
	}
	ctx, err := drv.retainPrimary(dev)
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: primary context: %w", ordinal, mapped(err))
	}
	return &Device{driver: drv, info: info, context: ctx, release: func() error { return drv.releasePrimary(dev) }}, nil
}

// FromHandle returns a Device over a context that the program already has, given as its
// CUcontext. The program keeps the context: closing the Device leaves it alone. The context must outlive it.
// The errors are Open's.
func FromHandle(handle uintptr) (*Device, error) {
	drv, err := library()
	if err != nil {
		return nil, fmt.Errorf("device of context %#x: %w", handle, err)
	}
	d := &Device{driver: drv, context: context(handle), release: func() error { return nil }}
	err = d.do(func() error {
		dev, err := drv.currentDevice()
		if err == nil {
			d.info, err = drv.describe(dev)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("device of context %#x: %w", handle, mapped(err))
	}
	return d, nil
}

// Name returns the device's product name.
func (d *Device) Name() string { return d.info.Name }

// Ordinal returns the device's index.
func (d *Device) Ordinal() int { return d.info.Ordinal }

// String returns the name and the ordinal: "NVIDIA A100-SXM4-40GB 0".
func (d *Device) String() string { return text.Line(fmt.Sprintf("%s %d", d.info.Name, d.info.Ordinal)) }

// do makes the context current on this thread for the time of a call.
func (d *Device) do(call func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return alloc.ErrClosed
	}
	return d.inContext(call)
}

func (d *Device) inContext(call func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.driver.push(d.context); err != nil {
		return err
	}
	err := call()
	// What call did is done, so a pop that fails must not turn it into a failure:
	// the context stays current on this thread, and every call here brings its own.
	_ = d.driver.pop()
	return err
}

// Alloc gives n bytes by cuMemAlloc. The errors are *alloc.OutOfMemoryError
// with the driver's numbers, *alloc.SizeError when n is negative, ErrDeviceLost,
// alloc.ErrClosed. Zero bytes take one, to have an address of their own.
func (d *Device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, &alloc.SizeError{Requested: n, Reason: "negative"}
	}
	var p uint64
	err := d.do(func() (err error) {
		p, err = d.driver.alloc(int64(max(n, 1)))
		return err
	})
	switch {
	case errors.Is(err, codeOutOfMemory), errors.Is(err, codeInvalidValue) && n > d.info.Memory: // a driver may call such a size invalid
		return 0, d.outOfMemory(n, err)
	case err != nil:
		return 0, fmt.Errorf("alloc %v on %v: %w", n, d, mapped(err))
	}
	return alloc.Ptr(p), nil
}

// Free frees memory with cuMemFree. The driver cannot tell an address
// freed before from one that it never gave: both are alloc.ErrUnknownPtr.
func (d *Device) Free(p alloc.Ptr) error {
	err := d.do(func() error {
		if p == 0 {
			return codeInvalidValue // the driver takes it for a free of nothing
		}
		return d.driver.free(uint64(p))
	})
	if err != nil {
		return fmt.Errorf("free %v on %v: %w", p, d, mappedAddress(err))
	}
	return nil
}

// MemInfo asks the driver, by cuMemGetInfo. The error is alloc.ErrClosed, or the driver's: see
// [Error].
func (d *Device) MemInfo() (alloc.MemInfo, error) {
	var free, total uint64
	err := d.do(func() (err error) {
		free, total, err = d.driver.memInfo()
		return err
	})
	if err != nil {
		return alloc.MemInfo{}, fmt.Errorf("memory info of %v: %w", d, mapped(err))
	}
	return alloc.MemInfo{Free: alloc.Bytes(free), Total: alloc.Bytes(total)}, nil
}

// Close gives back the context that Open took, and the events of its intervals and streams. What
// was allocated lives on if somebody else in the process holds the primary context,
// and is freed with it if not. After Close every call is alloc.ErrClosed, Close too.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("close %v: %w", d, alloc.ErrClosed)
	}
	d.closed = true
	if err := errors.Join(d.destroyEvents(), d.release()); err != nil {
		return fmt.Errorf("close %v: %w", d, mapped(err))
	}
	return nil
}
