package alloc

import (
	"fmt"
	"math"
	"sync"
)

// CountingDevice is a VirtualDevice without memory that only counts, to find out what an
// allocator would do with a history of requests. It has a size, so memory can run out. Holes
// between allocations never make a request fail, as on a device with virtual memory. It checks
// the addresses that Free gets, but not those of Map and Unmap.
//
// Any goroutine may call anything. Package alloc/sim has a device that behaves more like a
// driver, with faults, latency and memory to copy to.
type CountingDevice struct {
	total Bytes

	mu     sync.Mutex
	live   map[Ptr]Bytes
	next   Ptr
	counts DeviceCounts
}

var _ VirtualDevice = (*CountingDevice)(nil)

// DeviceCounts are the counts of a CountingDevice.
type DeviceCounts struct {
	Allocs  int64 // calls of Alloc and Map that gave memory
	Frees   int64 // calls of Free and Unmap that took it back
	Refused int64 // calls of Alloc and Map for which memory was too small

	Used Bytes // what live allocations and mapped chunks take
	Peak Bytes // the most that they took
}

// Addresses are spaced as CUDA's are for allocations of 2 MiB and more, and
// begin where CUDA's often do.
const (
	countingAddress = Ptr(0x7f00_0000_0000)
	countingAlign   = 2 * MiB
)

// NewCountingDevice returns a device of that size. A size of 0 or less means unlimited memory.
func NewCountingDevice(total Bytes) *CountingDevice {
	if total <= 0 {
		total = math.MaxInt64
	}
	return &CountingDevice{total: total, live: make(map[Ptr]Bytes), next: countingAddress}
}

// Alloc returns an address for n bytes, which take n rounded up to a multiple of 512 bytes, at
// least 512. Each address is a multiple of 2 MiB, higher than all before it, and never reused.
// The errors are *OutOfMemoryError, and *SizeError for a negative n.
func (d *CountingDevice) Alloc(n Bytes) (Ptr, error) {
	if n < 0 {
		return 0, &SizeError{Requested: n, Reason: "negative"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > maxRequest || !d.give(blockSize(n)) {
		return 0, d.outOfMemory(n)
	}
	p, size := d.next, blockSize(n)
	d.next += Ptr(roundUp(size, countingAlign))
	d.live[p] = size
	return p, nil
}

// give counts memory that is asked for, if it is there.
func (d *CountingDevice) give(size Bytes) bool {
	if size > d.total-d.counts.Used {
		return false
	}
	d.counts.Allocs++
	d.counts.Used += size
	d.counts.Peak = max(d.counts.Peak, d.counts.Used)
	return true
}

func (d *CountingDevice) outOfMemory(n Bytes) error {
	d.counts.Refused++
	return &OutOfMemoryError{
		Device: d.String(), Requested: n, Free: d.total - d.counts.Used, Total: d.total,
		Reserved: -1, Allocated: d.counts.Used, LargestInactive: -1,
	}
}

// Free frees an address. An address that is not a live allocation's is ErrUnknownPtr.
func (d *CountingDevice) Free(p Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, ok := d.live[p]
	if !ok {
		return fmt.Errorf("free %v on %v: %w", p, d, ErrUnknownPtr)
	}
	delete(d.live, p)
	d.counts.Frees++
	d.counts.Used -= size
	return nil
}

// Reserve returns addresses as Alloc does; they do not run out. The error is *SizeError, for a
// size that is not a multiple of the chunk.
func (d *CountingDevice) Reserve(n, chunk Bytes) (Ptr, error) {
	if n <= 0 || chunk <= 0 || n%chunk != 0 {
		return 0, &SizeError{Requested: n, Reason: fmt.Sprintf("no multiple of the chunk of %v", chunk)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.next
	d.next += Ptr(roundUp(n, countingAlign))
	return p, nil
}

// Release does nothing, because addresses are not reused. The error is always nil.
func (d *CountingDevice) Release(Ptr) error { return nil }

// Map counts n bytes as used. The error is *OutOfMemoryError.
func (d *CountingDevice) Map(_ Ptr, n Bytes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.give(n) {
		return d.outOfMemory(n)
	}
	return nil
}

// Unmap counts n bytes as free. The error is always nil.
func (d *CountingDevice) Unmap(_ Ptr, n Bytes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Frees++
	d.counts.Used -= n
	return nil
}

// Counts returns the counts so far.
func (d *CountingDevice) Counts() DeviceCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// MemInfo returns the free and the total memory. The error is always nil.
func (d *CountingDevice) MemInfo() (MemInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return MemInfo{Free: d.total - d.counts.Used, Total: d.total}, nil
}

// Name returns "Counting device".
func (d *CountingDevice) Name() string { return "Counting device" }

// Ordinal returns 0.
func (d *CountingDevice) Ordinal() int { return 0 }

// String returns the name and the ordinal.
func (d *CountingDevice) String() string { return "Counting device 0" }
