package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// device counts the memory that allocators take from it. If a request needs the same segment as in
// the recording, the device gives it the recorded address, so that the allocator's choices between
// equal blocks come out the same.
type device struct {
	total    alloc.Bytes
	reserved alloc.Bytes // by the allocator
	foreign  alloc.Bytes // by others
	peak     alloc.Bytes // highest value of reserved
	calls    calls       // nil if they are not counted one by one
	allocs   int64
	frees    int64

	recorded []place // segments that the driver returned, when recorded, for the next request
	held     []place // reserved at recorded addresses, sorted
	made     map[alloc.Ptr]alloc.Bytes
	next     alloc.Ptr
	ranges   []place     // address ranges that the allocator reserved; adjacent ones are joined
	origins  []alloc.Ptr // where each began when it was recorded; 0 is unknown
}

type place struct {
	ptr  alloc.Ptr
	size alloc.Bytes
}

func (p place) end() alloc.Ptr { return p.ptr + alloc.Ptr(p.size) }

var _ capability.VirtualDevice = (*device)(nil)

// granularity is what the addresses that the device makes up are multiples of, as a driver's.
const granularity = 2 << 20

// recordedEnd is above the addresses of all devices. Those that the device makes up itself are above it.
const recordedEnd = alloc.Ptr(1) << 57

func newDevice(total alloc.Bytes) *device {
	if total <= 0 {
		total = math.MaxInt64
	}
	return &device{total: total, made: make(map[alloc.Ptr]alloc.Bytes), next: recordedEnd}
}

var errFull = fmt.Errorf("replayed device: %w", alloc.ErrOutOfMemory)

func (d *device) free() alloc.Bytes { return d.total - d.reserved - d.foreign }

// take counts memory for the allocator.
func (d *device) take(n alloc.Bytes) error {
	if n > d.free() {
		return errFull
	}
	d.allocs++
	d.called(n)
	d.reserved += n
	d.peak = max(d.peak, d.reserved)
	return nil
}

func (d *device) called(change alloc.Bytes) {
	if d.calls != nil {
		d.calls[change]++
	}
}

func (d *device) giveBack(n alloc.Bytes) {
	d.frees++
	d.called(-n)
	d.reserved -= n
}

func (d *device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if err := d.take(n); err != nil {
		return 0, err
	}
	for i, p := range d.recorded {
		if p.size != n {
			continue
		}
		if at, ok := d.slot(p); ok {
			d.recorded = slices.Delete(d.recorded, i, i+1)
			d.held = slices.Insert(d.held, at, p)
			return p.ptr, nil
		}
	}
	return d.makeUp(n), nil
}

// makeUp returns a new address for n bytes.
func (d *device) makeUp(n alloc.Bytes) alloc.Ptr {
	p := d.next
	d.next += roundUp(alloc.Ptr(n), granularity)
	d.made[p] = n
	return p
}

// maxHeld bounds the segments at recorded addresses, because inserting one moves those behind it. A device
// of 64 GiB holds as many of the smallest segments.
const maxHeld = 1 << 15

// slot returns the index at which a recorded place belongs in d.held, and whether the place is
// free and can be used.
func (d *device) slot(p place) (int, bool) {
	if len(d.held) >= maxHeld || p.ptr == 0 || p.ptr >= recordedEnd || p.size > alloc.Bytes(recordedEnd-p.ptr) {
		return 0, false
	}
	i, same := d.find(p.ptr)
	return i, !same && (i == 0 || d.held[i-1].end() <= p.ptr) && (i == len(d.held) || p.end() <= d.held[i].ptr)
}

func (d *device) find(p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(d.held, p, func(h place, p alloc.Ptr) int { return cmp.Compare(h.ptr, p) })
}

func (d *device) Free(p alloc.Ptr) error {
	if size, ok := d.made[p]; ok {
		delete(d.made, p)
		d.giveBack(size)
		return nil
	}
	i, ok := d.find(p)
	if !ok {
		return fmt.Errorf("free %v: %w", p, alloc.ErrUnknownPtr)
	}
	d.giveBack(d.held[i].size)
	d.held = slices.Delete(d.held, i, i+1)
	return nil
}

func (d *device) Reserve(n, _ alloc.Bytes) (alloc.Ptr, error) {
	if n <= 0 || roundUp(alloc.Ptr(n), granularity) > math.MaxUint64-d.next {
		return 0, errors.New("no addresses left")
	}
	p := d.next
	d.next += roundUp(alloc.Ptr(n), granularity)
	origin := alloc.Ptr(0)
	if len(d.recorded) > 0 {
		origin = d.recorded[0].ptr // what was mapped first in the recorded range
	}
	d.ranges, d.origins = append(d.ranges, place{p, n}), append(d.origins, origin)
	return p, nil
}

// recordedAt returns the address that a block would have had when it was recorded: ranges that grow are
// reserved elsewhere, but are used alike.
func (d *device) recordedAt(p alloc.Ptr) alloc.Ptr {
	for i, r := range d.ranges {
		if r.ptr <= p && p < r.end() && d.origins[i] != 0 {
			return d.origins[i] + (p - r.ptr)
		}
	}
	return p
}

func (d *device) Release(alloc.Ptr) error { return nil }

func (d *device) Map(_ alloc.Ptr, n alloc.Bytes) error { return d.take(n) }

func (d *device) Unmap(_ alloc.Ptr, n alloc.Bytes) error {
	d.giveBack(n)
	return nil
}

func (d *device) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{Free: d.free(), Total: d.total}, nil
}

func (d *device) Name() string { return "replayed device" }

func (d *device) Ordinal() int { return 0 }
