package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// gpu is a Device.
type gpu struct {
	driver  *driver
	ordinal int
	info    Info
	context context
	release func() error // gives back what Open took

	mu     sync.RWMutex // held for reading during each call
	closed bool

	events openEvents

	reservedMu sync.Mutex // taken before mu
	reserved   map[alloc.Ptr]*reservation
	unreleased []uint64 // handles of memory that the driver did not take back
}

// Name returns the device's product name.
func (d *gpu) Name() string { return d.info.Name }

// Ordinal returns the device's index.
func (d *gpu) Ordinal() int { return d.ordinal }

// String returns the name and the ordinal: "NVIDIA A100-SXM4-40GB 0".
func (d *gpu) String() string { return text.Line(fmt.Sprintf("%s %d", d.info.Name, d.ordinal)) }

// do makes the context current on this thread for the time of a call.
func (d *gpu) do(call func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return alloc.ErrClosed
	}
	return d.inContext(call)
}

func (d *gpu) inContext(call func() error) error {
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

// Alloc takes one byte for a request for none, so that it has an address of its own.
func (d *gpu) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
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

// outOfMemory fills in what the driver knows; a device has no cache.
func (d *gpu) outOfMemory(n alloc.Bytes, err error) error {
	oom := &alloc.OutOfMemoryError{
		Device: d.String(), Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
	if info, infoErr := d.MemInfo(); infoErr == nil {
		oom.Free, oom.Total = info.Free, info.Total
	}
	return oom
}

func (d *gpu) Free(p alloc.Ptr) error {
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
func (d *gpu) MemInfo() (alloc.MemInfo, error) {
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

func (d *gpu) Close() error {
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

// Info is what the driver says of a device.
type Info struct {
	Name string `json:"name"` // "NVIDIA A100-SXM4-40GB"
	// UUID is as nvidia-smi prints it: "GPU-e3a10000-0000-4000-8000-000000000000", or
	// "MIG-..." of a MIG instance. A driver from before CUDA 11.4 gives an instance the
	// UUID of its GPU.
	UUID   string      `json:"uuid"`
	Memory alloc.Bytes `json:"memory_bytes"` // the whole of it, used and free
}

// UUID returns it as Info has it.
func (d *gpu) UUID() string { return d.info.UUID }

func (d *driver) describe(dev device) (info Info, err error) {
	if info.Name, err = d.name(dev); err != nil {
		return Info{}, fmt.Errorf("name: %w", err)
	}
	uuid, err := d.uuid(dev)
	if err != nil {
		return Info{}, fmt.Errorf("UUID: %w", err)
	}
	info.UUID = libcuda.UUID(uuid, info.Name)
	memory, err := d.totalMemory(dev)
	if err != nil {
		return Info{}, fmt.Errorf("memory: %w", err)
	}
	info.Memory = alloc.Bytes(memory)
	return info, nil
}
