package recordings

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// call is a driver call of a recording.
type call struct {
	action string
	ptr    alloc.Ptr
	size   alloc.Bytes
}

func (c call) String() string { return fmt.Sprintf("%s of %v at %v", c.action, c.size, c.ptr) }

// gives reports whether the call gives memory back.
func (c call) gives() bool { return c.action == "segment_free" || c.action == "segment_unmap" }

// errNotRecorded is the error of a driver call that the recording does not have at that place.
var errNotRecorded = errors.New("not the recorded driver call")

// device answers as the driver did: its calls must be those that it waits for, in their
// order. A call for memory is out of memory where the recording gives memory back
// first, or has an out-of-memory error.
type device struct {
	total   alloc.Bytes
	waiting []call
	given   bool   // memory was given back for the request
	failed  error  // the first call that was not recorded
	event   *event // the last one recorded
}

var (
	_ capability.VirtualDevice = (*device)(nil)
	_ capability.EventDevice   = (*device)(nil)
)

func (d *device) next(want call) (call, error) {
	var got string
	if len(d.waiting) > 0 {
		next := d.waiting[0]
		if next.action == want.action && next.size == want.size && (want.ptr == 0 || want.ptr == next.ptr) {
			d.waiting = d.waiting[1:]
			d.given = d.given || next.gives()
			return next, nil
		}
		if next.gives() && !want.gives() || next.action == "oom" {
			return call{}, d.outOfMemory(want.size)
		}
		got = next.String()
	} else if d.given && !want.gives() { // all that the recording gave back was not enough
		return call{}, d.outOfMemory(want.size)
	}
	err := fmt.Errorf("%w: the cache asks for %v, the recording has %q", errNotRecorded, want, got)
	if d.failed == nil {
		d.failed = err
	}
	return call{}, err
}

func (d *device) outOfMemory(n alloc.Bytes) error {
	return &alloc.OutOfMemoryError{Device: "recorded device 0", Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1}
}

func (d *device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	c, err := d.next(call{"segment_alloc", 0, n})
	return c.ptr, err
}

func (d *device) Free(p alloc.Ptr) error {
	size := alloc.Bytes(0)
	if len(d.waiting) > 0 {
		size = d.waiting[0].size // which Free does not say
	}
	_, err := d.next(call{"segment_free", p, size})
	return err
}

// Reserve gives the addresses that are mapped next: a recording has no call for it.
func (d *device) Reserve(alloc.Bytes, alloc.Bytes) (alloc.Ptr, error) {
	if len(d.waiting) == 0 {
		return 0, d.outOfMemory(0)
	}
	return d.waiting[0].ptr, nil
}

func (d *device) Release(alloc.Ptr) error { return nil }

func (d *device) Map(p alloc.Ptr, n alloc.Bytes) error {
	_, err := d.next(call{"segment_map", p, n})
	return err
}

func (d *device) Unmap(p alloc.Ptr, n alloc.Bytes) error {
	_, err := d.next(call{"segment_unmap", p, n})
	return err
}

// MemInfo returns the total, if it is known; what is free is not.
func (d *device) MemInfo() (alloc.MemInfo, error) {
	if d.total == 0 {
		return alloc.MemInfo{}, fmt.Errorf("memory of a recorded device: %w", errors.ErrUnsupported)
	}
	return alloc.MemInfo{Free: 0, Total: d.total}, nil
}

func (d *device) Name() string { return "recorded device" }

func (d *device) Ordinal() int { return 0 }

// describe lists calls.
func describe(calls []call) string {
	var b strings.Builder
	for _, c := range calls[:min(len(calls), 3)] {
		fmt.Fprintf(&b, "%v; ", c)
	}
	return fmt.Sprintf("%d: %s", len(calls), b.String())
}
