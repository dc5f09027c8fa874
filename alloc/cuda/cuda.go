package cuda

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// Device is an open CUDA device, from Open or FromHandle. It has all the optional methods of an
// alloc.Device: [alloc.As] finds them.
//
// Alloc is cuMemAlloc, Free cuMemFree. The errors are *alloc.OutOfMemoryError with the driver's
// numbers, alloc.ErrSize when n is negative, ErrDeviceLost, alloc.ErrClosed, and the driver's: see
// [Error]. The driver cannot tell an address freed before from one that it never gave: both are
// alloc.ErrUnknownPtr. So are addresses of a copy or a fill that are not all inside one allocation.
type Device interface {
	alloc.Device
	alloc.Copier
	// NewPool makes a pool of the device's memory. The error is errors.ErrUnsupported if the driver or
	// the device has no pools: drivers before CUDA 11.2 have none, nor have some virtual GPUs.
	NewPool(cfg PoolConfig) (Pool, error)
	// DefaultPool returns the device's own pool, which cuMemAllocAsync takes from unless the program
	// chose another. Close leaves it alone. The errors are NewPool's.
	DefaultPool() (Pool, error)
	// Managed returns the device's managed memory: pages that the driver moves between the host and
	// the device as either touches them.
	//
	//	tr, err := tracker.New(tracker.Config{Device: dev.Managed(), NoCache: true})
	//
	// A tracker over it has alloc.ManagedMemory, and counts all of it. The driver does not say how
	// much of it is on the device, so untracked memory is unknown. Managed memory may be larger than
	// the device's. Alloc returns errors.ErrUnsupported if the driver has no managed memory. The
	// methods may be called from any goroutine.
	Managed() alloc.Device
	// Pinned returns an allocator of pinned host memory.
	Pinned(cfg PinnedConfig) Pinned
	// Close gives back the context that Open took, and the events of its intervals and streams. What
	// is still allocated is freed with the context, unless other code in the process also holds the
	// primary context. After Close every call returns alloc.ErrClosed, Close too.
	Close() error
}

var (
	_ Device                    = (*gpu)(nil)
	_ capability.All            = (*gpu)(nil)
	_ capability.Identified     = (*gpu)(nil)
	_ capability.ThreadStreamer = (*gpu)(nil)
	_ capability.Reconciler     = (*gpu)(nil)
)

// Open loads the driver, if nothing has yet, opens the device of that index among those
// that the process sees, and retains its primary context: the one that CUDA's
// runtime and its libraries use too. The caller closes it.
//
// Where there is no GPU to use the error is ErrNoGPU. With ErrDeviceLost and alloc.ErrOutOfMemory there is a
// device, but it cannot be opened now.
func Open(ordinal int) (Device, error) {
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
	return &gpu{driver: drv, ordinal: ordinal, info: info, context: ctx, release: func() error { return drv.releasePrimary(dev) }}, nil
}

// FromHandle returns a Device over a context that the program already has, given as its
// CUcontext. The program keeps the context: closing the Device leaves it alone. The context must outlive it.
// The errors are Open's.
func FromHandle(handle uintptr) (Device, error) {
	drv, err := library()
	if err != nil {
		return nil, fmt.Errorf("device of context %#x: %w", handle, err)
	}
	d := &gpu{driver: drv, context: context(handle), release: func() error { return nil }}
	err = d.do(func() error {
		dev, err := drv.currentDevice()
		if err == nil {
			d.ordinal = int(dev) // a CUdevice is the ordinal
			d.info, err = drv.describe(dev)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("device of context %#x: %w", handle, mapped(err))
	}
	return d, nil
}

// Devices describes the devices that the process sees, in their order, without opening one. The
// errors are those of Open: ErrNoGPU if there is no device.
func Devices() ([]Info, error) {
	drv, err := library()
	if err != nil {
		return nil, fmt.Errorf("CUDA devices: %w", err)
	}
	n, err := drv.count()
	if err != nil {
		return nil, fmt.Errorf("CUDA devices: %w", mapped(err))
	}
	if n == 0 {
		return nil, fmt.Errorf("CUDA devices: %w", errNoDevice)
	}
	infos := make([]Info, n)
	for i := range infos {
		dev, err := drv.device(i)
		if err == nil {
			infos[i], err = drv.describe(dev)
		}
		if err != nil {
			return nil, fmt.Errorf("CUDA device %d of %d: %w", i, n, mapped(err))
		}
	}
	return infos, nil
}
