package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Pinned allocates host memory that does not move, as an alloc.Device. Copies between it and the device
// are faster than those of other host memory, and can run while the program goes on.
//
//	pinned := dev.Pinned(cuda.PinnedConfig{})
//	p, err := pinned.Alloc(n)
//	host, err := pinned.Slice(p)           // the memory, for the program
//	err = tr.Register(p, pinned.Memory(), shape, alloc.Float32, tracker.Input)
//	...
//	_, err = tr.Unregister(p)
//	err = pinned.Free(p)
//
// It can have its own tracker too: tracker.Config{Device: pinned}. Host memory counts in no
// total of the device. The methods may be called from any goroutine.
type Pinned interface {
	alloc.Device
	alloc.Copier
	// Memory returns alloc.PinnedMemory, or alloc.MappedMemory.
	Memory() alloc.Memory
	// Slice returns the memory at an address that Alloc gave, to read and write until Free. Its
	// length is what was asked for. An address that is not live is alloc.ErrUnknownPtr.
	Slice(at alloc.Ptr) ([]byte, error)
	// DevicePtr returns the address by which kernels reach mapped memory. The error is
	// alloc.ErrUnknownPtr for an address that is not live, or the driver's; memory that is not
	// mapped is an error too.
	DevicePtr(at alloc.Ptr) (on alloc.Ptr, err error)
}

// pinned is the memory of Device.Pinned.
type pinned struct {
	dev *gpu
	cfg PinnedConfig

	mu   sync.Mutex
	live map[alloc.Ptr]*pinnedBlock
}

// pinnedBlock is a live allocation.
type pinnedBlock struct {
	size   alloc.Bytes
	copies sync.RWMutex // read by each copy; Free waits for them
}

// PinnedConfig says what else pinned memory can do.
type PinnedConfig struct {
	// Mapped lets kernels reach the memory, by the address that DevicePtr returns.
	Mapped bool
	// WriteCombined is faster to send to the device, and very slow for the program to read.
	WriteCombined bool
}

func (c PinnedConfig) flags() hostFlags {
	flags := hostPortable
	if c.Mapped {
		flags |= hostMapped
	}
	if c.WriteCombined {
		flags |= hostWriteCombined
	}
	return flags
}

func (p *pinned) Memory() alloc.Memory {
	if p.cfg.Mapped {
		return alloc.MappedMemory
	}
	return alloc.PinnedMemory
}

// Name says what memory it is, and of which device's driver.
func (p *pinned) Name() string { return fmt.Sprintf("%v host memory of %s", p.Memory(), p.dev.Name()) }

// Ordinal returns the device's index.
func (p *pinned) Ordinal() int { return p.dev.Ordinal() }

func (p *pinned) String() string { return fmt.Sprintf("%s %d", p.Name(), p.Ordinal()) }

// MemInfo is errors.ErrUnsupported: the driver does not say how much the host lets be pinned.
func (p *pinned) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{}, fmt.Errorf("memory info of %v: the driver does not say: %w", p, errors.ErrUnsupported)
}

// Alloc allocates n bytes by cuMemHostAlloc; zero bytes take one. The errors are Device.Alloc's, of
// which *alloc.OutOfMemoryError has no levels.
func (p *pinned) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	switch {
	case n < 0:
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	case int64(n) != int64(uintptr(n)):
		return 0, fmt.Errorf("%w of %d bytes: too large for this platform's addresses", alloc.ErrSize, n)
	case p.dev.driver.hostAlloc == 0:
		return 0, fmt.Errorf("alloc %v of %v: the driver has none: %w", n, p, errors.ErrUnsupported)
	}
	var at uintptr
	err := p.dev.do(func() (err error) {
		at, err = p.dev.driver.pinned(int64(max(n, 1)), p.cfg.flags())
		if err == nil { // before anybody can free it
			p.mu.Lock()
			defer p.mu.Unlock()
			p.live[alloc.Ptr(at)] = &pinnedBlock{size: n}
		}
		return err
	})
	switch {
	case errors.Is(err, codeOutOfMemory):
		return 0, &alloc.OutOfMemoryError{
			Device: p.String(), Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
		}
	case err != nil:
		return 0, fmt.Errorf("alloc %v of %v: %w", n, p, mapped(err))
	}
	return alloc.Ptr(at), nil
}

// Free frees memory with cuMemFreeHost, which waits for work that uses it. Before that it waits for
// calls of CopyToDevice and CopyToHost that use it. What Slice returned must not be used any more.
// An address that is not live is alloc.ErrUnknownPtr.
func (p *pinned) Free(at alloc.Ptr) error {
	p.mu.Lock()
	b, ok := p.live[at]
	delete(p.live, at)
	p.mu.Unlock()
	err := error(codeInvalidValue)
	if ok {
		b.copies.Lock()
		defer b.copies.Unlock()
		err = p.dev.do(func() error { return p.dev.driver.unpin(uintptr(at)) })
	}
	if err != nil && ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.live[at] = b
	}
	if err != nil {
		return fmt.Errorf("free %v of %v: %w", at, p, mappedAddress(err))
	}
	return nil
}

func (p *pinned) Slice(at alloc.Ptr) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.live[at]
	if !ok {
		return nil, fmt.Errorf("memory at %v of %v: %w", at, p, alloc.ErrUnknownPtr)
	}
	return p.bytes(at, b.size), nil
}

// bytes is memory that is not Go's: the conversion of its address is sound.
func (p *pinned) bytes(at alloc.Ptr, n alloc.Bytes) []byte {
	address := uintptr(at)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), int(n))
}

func (p *pinned) DevicePtr(at alloc.Ptr) (on alloc.Ptr, err error) {
	if !p.cfg.Mapped {
		return 0, fmt.Errorf("device address of %v of %v: it is not mapped: see PinnedConfig", at, p)
	}
	err = p.dev.do(func() error {
		address, err := p.dev.driver.devicePointer(uintptr(at))
		on = alloc.Ptr(address)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("device address of %v of %v: %w", at, p, mappedAddress(err))
	}
	return on, nil
}

// CopyToDevice copies src into the pinned memory. The error is alloc.ErrUnknownPtr when the bytes at
// dst are not all inside one allocation.
func (p *pinned) CopyToDevice(dst alloc.Ptr, src []byte) error {
	return p.copy(dst, len(src), func(memory []byte) { copy(memory, src) })
}

// CopyToHost fills dst from the pinned memory, with CopyToDevice's error.
func (p *pinned) CopyToHost(dst []byte, src alloc.Ptr) error {
	return p.copy(src, len(dst), func(memory []byte) { copy(dst, memory) })
}

// copy lets move have n bytes at an address. Nobody frees the memory meanwhile; all else goes on.
func (p *pinned) copy(at alloc.Ptr, n int, move func(memory []byte)) error {
	b := p.use(at, n)
	if b == nil {
		return fmt.Errorf("copy %d bytes at %v of %v: not inside an allocation: %w", n, at, p, alloc.ErrUnknownPtr)
	}
	defer b.copies.RUnlock()
	move(p.bytes(at, alloc.Bytes(n)))
	return nil
}

// use returns the allocation that has n bytes at an address, locked for a copy; nil if none has. It does
// not wait: Free locks an allocation when it is no longer live.
func (p *pinned) use(at alloc.Ptr, n int) *pinnedBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	for start, b := range p.live {
		if at >= start && at-start <= alloc.Ptr(b.size) && alloc.Ptr(n) <= alloc.Ptr(b.size)-(at-start) {
			b.copies.RLock()
			return b
		}
	}
	return nil
}
