// Package timeline holds a list of allocations and frees. It asks the caching allocator of
// alloc/cache how much it reserves for them, and how small a device can be. It knows no tape.
package timeline

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
)

// Timeline is a list of allocations and frees in the order in which PyTorch makes them. A nil
// Timeline records nothing.
type Timeline struct {
	Events     []Event
	Expandable bool    // the allocator has expandable segments
	spare      []int32 // handles that were freed
	Next       int32
}

// Event is an allocation of some bytes or, if the bytes are negative, a free. A handle below 0
// means the gradients of a group of parameters, -1 those of the first group; freeing them means
// that they were added to existing gradients.
type Event struct {
	Handle int32
	Stream uint8 // for whose work the memory is allocated; blocks of one stream serve no other
	Bytes  int64
}

// Streams beside the default one, 0.
const (
	Gathering uint8 = 1 // copies parameters, and gathers those of all devices
	Reducing  uint8 = 2 // sums up gradients over all devices
)

// Alloc records an allocation and returns the handle to free it by. An allocation of no bytes is
// not recorded and has handle -1.
func (l *Timeline) Alloc(n int64) int32 { return l.AllocOn(n, 0) }

// AllocOn records an allocation for the work of a stream.
func (l *Timeline) AllocOn(n int64, stream uint8) int32 {
	if l == nil || n <= 0 {
		return -1
	}
	h := l.Next
	if last := len(l.spare) - 1; last >= 0 {
		h, l.spare = l.spare[last], l.spare[:last]
	} else {
		l.Next++
	}
	l.Events = append(l.Events, Event{h, stream, n})
	return h
}

func (l *Timeline) Free(h int32) {
	if l == nil || h < 0 {
		return
	}
	l.Events = append(l.Events, Event{Handle: h, Bytes: -1})
	l.spare = append(l.spare, h)
}

// Gradients records that a group of parameters, counted from 1, gets its gradients, from kernels
// that need a workspace.
func (l *Timeline) Gradients(group int32, workspace int64) {
	if l == nil || group <= 0 {
		return
	}
	l.Events = append(l.Events, Event{Handle: -group})
	l.Temporary(workspace)
	l.Events = append(l.Events, Event{Handle: -group, Bytes: -1})
}

// AllocAll records allocations and appends their handles.
func (l *Timeline) AllocAll(handles []int32, sizes ...int64) []int32 {
	for _, n := range sizes {
		handles = append(handles, l.Alloc(n))
	}
	return handles
}

func (l *Timeline) FreeAll(handles []int32) {
	for _, h := range handles {
		l.Free(h)
	}
}

// Temporary records an allocation that is freed at once.
func (l *Timeline) Temporary(n int64) { l.Free(l.Alloc(n)) }

// Temporaries records two allocations that are freed at once.
func (l *Timeline) Temporaries(m, n int64) {
	first, second := l.Alloc(m), l.Alloc(n)
	l.Free(first)
	l.Free(second)
}

// Above these lengths a history is replayed less precisely, only once, and not at all.
const (
	maxPrecise  = 1 << 13
	maxSearched = 1 << 17
	MaxEvents   = 1 << 19
)

// replayed holds the highest values of an allocator that ran a timeline.
type replayed struct{ Requested, Allocated, Reserved alloc.Bytes }

// impatient is a device that counts how often it ran out of memory.
type impatient struct {
	*counting.Device
	refused int
}

// Alloc implements alloc.Device.
func (d *impatient) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p, err := d.Device.Alloc(n)
	if err != nil {
		d.refused++
	}
	return p, err
}

// Map implements alloc.VirtualDevice.
func (d *impatient) Map(p alloc.Ptr, n alloc.Bytes) error {
	err := d.Device.Map(p, n)
	if err != nil {
		d.refused++
	}
	return err
}

// maxRefused is how often a run may run out of memory and go on, after the cache gave memory back.
// A run above it counts as one that does not fit, since each time the whole cache is searched.
const maxRefused = 64

// Replay runs the timeline through PyTorch's caching allocator on a device of this size; 0 means
// without limit. It returns false if memory ran out.
func (l *Timeline) Replay(device alloc.Bytes) (replayed, bool) {
	dev := &impatient{Device: counting.New(device)}
	cache, err := cache.New(dev, cache.Config{ExpandableSegments: l.Expandable})
	if err != nil {
		return replayed{}, false
	}
	ptrs := make([]alloc.Ptr, l.Next)
	for _, e := range l.Events {
		var err error
		if e.Bytes < 0 {
			err = cache.Free(ptrs[e.Handle])
		} else {
			ptrs[e.Handle], _, err = cache.AllocOn(alloc.Bytes(e.Bytes), alloc.Stream(e.Stream))
		}
		if err != nil || dev.refused > maxRefused {
			return replayed{}, false
		}
	}
	stats := cache.Stats()
	return replayed{stats.Requested.Bytes.Peak, stats.Allocated.Bytes.Peak, stats.Reserved.Bytes.Peak}, true
}

// Smallest returns the size of the smallest device on which the timeline runs, to within 1/64 (1/32
// for a long history) or 2 MiB. On such a device the allocator has to give cached segments back.
func (l *Timeline) Smallest(r replayed) alloc.Bytes {
	low, high := r.Allocated, r.Reserved // it runs with high
	if len(l.Events) > maxSearched {
		return high
	}
	near := high / 64
	if len(l.Events) > maxPrecise {
		near = high / 32
	}
	near = max(2*alloc.MiB, near)
	mid := low + near // mostly it runs with this
	for ; high-low > near; mid = low + (high-low)/2 {
		if _, ok := l.Replay(mid); ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// Passes holds the events of a forward and a backward pass. Their handles are their own.
type Passes struct {
	Events  []Event
	Turn    int     // number of events of the forward pass
	Handles int32   // number of handles
	Held    []int32 // handles of the output, which the loop's code holds at the end
}

func (p Passes) Forward() []Event { return p.Events[:p.Turn] }

func (p Passes) Backward() []Event { return p.Events[p.Turn:] }
