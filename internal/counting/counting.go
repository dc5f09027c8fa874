// Package counting has a device without memory, which shows what an allocator would do.
package counting

import (
	"fmt"
	"math"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// Device is a virtual device without memory that only counts, to find out what an
// allocator would do with a history of requests. It has a size, so memory can run out. Holes
// between allocations never make a request fail, as on a device with virtual memory. It checks
// the addresses that Free gets, but not those of Map and Unmap.
//
// Any goroutine may call anything. Package alloc/sim has a device that behaves more like a
// driver, with faults, latency and memory to copy to.
type Device struct {
	total alloc.Bytes

	mu     sync.Mutex
	live   map[alloc.Ptr]alloc.Bytes
	next   alloc.Ptr
	counts Counts
}

var _ capability.VirtualDevice = (*Device)(nil)

// Counts are the counts of a Device.
type Counts struct {
	Allocs  int64 // calls of Alloc and Map that succeeded
	Frees   int64 // calls of Free and Unmap that succeeded
	Refused int64 // calls of Alloc and Map that ran out of memory

	Used alloc.Bytes // what live allocations and mapped chunks take
	Peak alloc.Bytes // the most that they took
}

// Addresses are spaced as CUDA's are for allocations of 2 MiB and more, and
// begin where CUDA's often do.
const (
	firstAddress = alloc.Ptr(0x7f00_0000_0000)
	spacing      = 2 * alloc.MiB
	unit         = alloc.Bytes(512) // allocations are rounded up to it
)

// New returns a device of that size. A size of 0 or less means unlimited memory.
func New(total alloc.Bytes) *Device {
	if total <= 0 {
		total = math.MaxInt64
	}
	return &Device{total: total, live: make(map[alloc.Ptr]alloc.Bytes), next: firstAddress}
}

// Alloc returns an address for n bytes, which take n rounded up to a multiple of 512 bytes, at
// least 512. Each address is a multiple of 2 MiB, higher than all before it, and never reused.
// The errors are *alloc.OutOfMemoryError, and alloc.ErrSize for a negative n.
func (d *Device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > math.MaxInt64-spacing || !d.reserve(roundUp(max(n, 1), unit)) {
		return 0, d.outOfMemory(n)
	}
	p, size := d.next, roundUp(max(n, 1), unit)
	d.next += alloc.Ptr(roundUp(size, spacing))
	d.live[p] = size
	return p, nil
}

// reserve counts memory as used, and reports whether the device has that much.
func (d *Device) reserve(size alloc.Bytes) bool {
	if size > d.total-d.counts.Used {
		return false
	}
	d.counts.Allocs++
	d.counts.Used += size
	d.counts.Peak = max(d.counts.Peak, d.counts.Used)
	return true
}

func (d *Device) outOfMemory(n alloc.Bytes) error {
	d.counts.Refused++
	return &alloc.OutOfMemoryError{
		Device: d.String(), Requested: n, Free: d.total - d.counts.Used, Total: d.total,
		Reserved: -1, Allocated: d.counts.Used, LargestInactive: -1,
	}
}

// Free frees an address. An address that is not a live allocation's is alloc.ErrUnknownPtr.
func (d *Device) Free(p alloc.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, ok := d.live[p]
	if !ok {
		return fmt.Errorf("free %v on %v: %w", p, d, alloc.ErrUnknownPtr)
	}
	delete(d.live, p)
	d.counts.Frees++
	d.counts.Used -= size
	return nil
}

// Reserve returns addresses as Alloc does; they do not run out. The error is alloc.ErrSize, for a
// size that is not a multiple of the chunk.
func (d *Device) Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error) {
	if n <= 0 || chunk <= 0 || n%chunk != 0 {
		return 0, fmt.Errorf("%w of %d bytes: no multiple of the chunk of %v", alloc.ErrSize, n, chunk)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.next
	d.next += alloc.Ptr(roundUp(n, spacing))
	return p, nil
}

// Release does nothing, because addresses are not reused. The error is always nil.
func (d *Device) Release(alloc.Ptr) error { return nil }

// Map counts n bytes as used. The error is *alloc.OutOfMemoryError.
func (d *Device) Map(_ alloc.Ptr, n alloc.Bytes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reserve(n) {
		return d.outOfMemory(n)
	}
	return nil
}

// Unmap counts n bytes as free. The error is always nil.
func (d *Device) Unmap(_ alloc.Ptr, n alloc.Bytes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Frees++
	d.counts.Used -= n
	return nil
}

// Counts returns the counts so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// MemInfo returns the free and the total memory. The error is always nil.
func (d *Device) MemInfo() (alloc.MemInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return alloc.MemInfo{Free: d.total - d.counts.Used, Total: d.total}, nil
}

// Name returns "Counting device".
func (d *Device) Name() string { return "Counting device" }

// Ordinal returns 0.
func (d *Device) Ordinal() int { return 0 }

// String returns the name and the ordinal.
func (d *Device) String() string { return "Counting device 0" }

// roundUp rounds up to a multiple of unit, a power of two.
func roundUp(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) &^ (unit - 1) }
