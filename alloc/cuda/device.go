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

// Info is what the driver says of a device.
type Info struct {
	Name string `json:"name"` // "NVIDIA A100-SXM4-40GB"
	// UUID is as nvidia-smi prints it: "GPU-e3a10000-0000-4000-8000-000000000000", or
	// "MIG-..." of a MIG instance. A driver from before CUDA 11.4 gives an instance the
	// UUID of its GPU.
	UUID   string      `json:"uuid"`
	Memory alloc.Bytes `json:"memory_bytes"` // the whole of it, used and free
}

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

// UUID returns it as Info has it.
func (d *gpu) UUID() string { return d.info.UUID }

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

// Synchronize waits until all work in the context, on every stream, is done. An
// error may be that of work queued earlier.
func (d *gpu) Synchronize() error {
	if err := d.do(d.driver.synchronize); err != nil {
		return fmt.Errorf("synchronize %v: %w", d, mapped(err))
	}
	return nil
}

// CopyToDevice copies src to the device. The error is alloc.ErrUnknownPtr when
// the bytes at dst are not all inside one allocation.
func (d *gpu) CopyToDevice(dst alloc.Ptr, src []byte) error {
	return d.copy(dst, len(src), func() error { return d.driver.copyToDevice(uint64(dst), src) })
}

// CopyToHost fills dst from the device, with CopyToDevice's errors.
func (d *gpu) CopyToHost(dst []byte, src alloc.Ptr) error {
	return d.copy(src, len(dst), func() error { return d.driver.copyToHost(dst, uint64(src)) })
}

func (d *gpu) copy(p alloc.Ptr, n int, move func() error) error {
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		return move()
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes at %v on %v: %w", n, p, d, mappedAddress(err))
	}
	return nil
}

// Fill queues work on stream s that sets n bytes at p to value, by cuMemsetD8Async. The errors are
// those of CopyToDevice.
func (d *gpu) Fill(p alloc.Ptr, n alloc.Bytes, value byte, s alloc.Stream) error {
	if n < 0 {
		return fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		return d.driver.fill(uint64(p), int64(n), value, s)
	})
	if err != nil {
		return fmt.Errorf("fill %v at %v on stream %#x of %v: %w", n, p, uint64(s), d, mappedAddress(err))
	}
	return nil
}

// CopyFrom copies by cuMemcpyPeer, and waits until it is done. from is a Device, or a device over one.
// The errors are CopyToDevice's, and errors.ErrUnsupported for any other device.
func (d *gpu) CopyFrom(dst alloc.Ptr, from alloc.Device, src alloc.Ptr, n alloc.Bytes) error {
	peer, ok := alloc.As[*gpu](from)
	if !ok {
		return fmt.Errorf("copy %v from %s to %v: not a CUDA device: %w", n, text.Line(from.Name()), d, errors.ErrUnsupported)
	}
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		if err := d.driver.copyPeer(uint64(dst), d.context, uint64(src), peer.context, int64(n)); err != nil {
			return err
		}
		return d.driver.synchronize()
	})
	if err != nil {
		return fmt.Errorf("copy %v at %v on %v to %v on %v: %w", n, src, peer, dst, d, mappedAddress(err))
	}
	return nil
}

func (d *gpu) NewPool(cfg PoolConfig) (Pool, error) {
	if cfg.ReleaseThreshold < 0 || cfg.MaxSize < 0 {
		return nil, fmt.Errorf("new pool on %v: a release threshold of %v, a size of at most %v: want 0 or more", d, cfg.ReleaseThreshold, cfg.MaxSize)
	}
	p, err := d.newPool(true, func(dev device) (memPool, error) { return d.driver.newPool(dev, int64(cfg.MaxSize)) })
	if err == nil && cfg.ReleaseThreshold > 0 {
		if err = p.SetReleaseThreshold(cfg.ReleaseThreshold); err != nil {
			err = errors.Join(err, p.Close())
			p = nil
		}
	}
	return p, err
}

func (d *gpu) DefaultPool() (Pool, error) {
	p, err := d.newPool(false, d.driver.defaultPool)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (d *gpu) newPool(own bool, get func(device) (memPool, error)) (*pool, error) {
	if d.driver.poolAlloc == 0 {
		return nil, fmt.Errorf("memory pool on %v: the driver has none: %w", d, errors.ErrUnsupported)
	}
	p := &pool{dev: d, own: own, live: make(map[alloc.Ptr]*pooled)}
	err := d.do(func() error {
		dev, err := d.driver.currentDevice()
		if err != nil {
			return err
		}
		if has, err := d.driver.attribute(memoryPoolsSupported, dev); err != nil || has == 0 {
			return errors.Join(errors.ErrUnsupported, err)
		}
		p.pool, err = get(dev)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("memory pool on %v: %w", d, mapped(err))
	}
	return p, nil
}

func (d *gpu) Pinned(cfg PinnedConfig) Pinned {
	return &pinned{dev: d, cfg: cfg, live: make(map[alloc.Ptr]*pinnedBlock)}
}

// managed allocates managed memory of a Device.
type managed struct{ dev *gpu }

var _ alloc.Device = managed{}

func (d *gpu) Managed() alloc.Device { return managed{d} }

// Memory returns alloc.ManagedMemory.
func (m managed) Memory() alloc.Memory { return alloc.ManagedMemory }

// Unwrap returns the device; alloc.As finds its optional methods.
func (m managed) Unwrap() alloc.Device { return m.dev }

// Name returns the device's product name.
func (m managed) Name() string { return m.dev.Name() }

// Ordinal returns the device's index.
func (m managed) Ordinal() int { return m.dev.Ordinal() }

func (m managed) String() string { return fmt.Sprintf("managed memory of %v", m.dev) }

// MemInfo is the device's. Its errors are the same.
func (m managed) MemInfo() (alloc.MemInfo, error) { return m.dev.MemInfo() }

// Free is Device.Free. The errors are the same.
func (m managed) Free(p alloc.Ptr) error { return m.dev.Free(p) }

// Alloc allocates n bytes by cuMemAllocManaged, for every stream. It takes one byte for a request for none. The error is
// errors.ErrUnsupported on a driver without managed memory; the other errors are Device.Alloc's.
// Memory may be larger than the device's.
func (m managed) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	switch {
	case n < 0:
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	case m.dev.driver.allocManaged == 0:
		return 0, fmt.Errorf("alloc %v of %v: the driver has none: %w", n, m, errors.ErrUnsupported)
	}
	var p uint64
	err := m.dev.do(func() (err error) {
		p, err = m.dev.driver.managed(int64(max(n, 1)))
		return err
	})
	switch {
	case errors.Is(err, codeOutOfMemory):
		return 0, m.dev.outOfMemory(n, err)
	case err != nil:
		return 0, fmt.Errorf("alloc %v of %v: %w", n, m, mapped(err))
	}
	return alloc.Ptr(p), nil
}
