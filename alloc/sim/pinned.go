package sim

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// defaultPinned is how much host memory can be pinned unless Pinned is told otherwise.
const defaultPinned = 8 * alloc.GiB

// pinned is the memory of Device.Pinned.
type pinned struct {
	dev   *device
	limit alloc.Bytes

	mu   sync.Mutex
	next alloc.Ptr
	live map[alloc.Ptr]alloc.Bytes
	size alloc.Bytes
}

var _ alloc.Device = (*pinned)(nil)

// Memory returns alloc.PinnedMemory.
func (p *pinned) Memory() alloc.Memory { return alloc.PinnedMemory }

// Name says what memory it is.
func (p *pinned) Name() string { return "pinned host memory of " + p.dev.Name() }

// Ordinal returns the device's index.
func (p *pinned) Ordinal() int { return p.dev.Ordinal() }

// MemInfo returns errors.ErrUnsupported, as with a real driver.
func (p *pinned) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{}, fmt.Errorf("memory info of %s: %w", p.Name(), errors.ErrUnsupported)
}

// Alloc allocates n bytes. The errors are *alloc.OutOfMemoryError beyond the limit, alloc.ErrSize
// when n is negative, alloc.ErrClosed, and those of faults.
func (p *pinned) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.dev.call("PinnedAlloc")
	full := n > p.limit-p.size
	switch {
	case errors.Is(err, alloc.ErrOutOfMemory), err == nil && full:
		return 0, &alloc.OutOfMemoryError{
			Device: fmt.Sprintf("%s %d", p.Name(), p.Ordinal()), Requested: n, Free: p.limit - p.size, Total: p.limit,
			Reserved: -1, Allocated: p.size, LargestInactive: -1, Err: err,
		}
	case err != nil:
		return 0, err
	}
	at := p.next
	p.next += alloc.Ptr((max(n, 1) + granule - 1) / granule * granule)
	p.live[at] = n
	p.size += n
	return at, nil
}

// Free takes back an address that Alloc gave; any other is alloc.ErrUnknownPtr.
func (p *pinned) Free(at alloc.Ptr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.dev.call("PinnedFree"); err != nil {
		return err
	}
	n, ok := p.live[at]
	if !ok {
		return fmt.Errorf("free %v of %s: %w", at, p.Name(), alloc.ErrUnknownPtr)
	}
	delete(p.live, at)
	p.size -= n
	return nil
}

// Live returns how many allocations there are, and their bytes.
func (p *pinned) Live() (allocations int, requested alloc.Bytes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live), p.size
}
