package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// timeline is a history of allocations and frees in the order in which PyTorch makes
// them. A nil timeline takes no notes.
type timeline struct {
	events []event
	spare  []int32 // handles that were freed
	next   int32
}

// event is an allocation of so many bytes or, where they are negative, a free. A handle
// below 0 stands for the gradients of a group of parameters, -1 for the first; they are freed
// when they were added to those that were there.
type event struct {
	handle int32
	bytes  int64
}

// alloc notes an allocation and returns the handle to free it by. Nothing is noted
// for no bytes, whose handle is -1.
func (l *timeline) alloc(n int64) int32 {
	if l == nil || n <= 0 {
		return -1
	}
	h := l.next
	if last := len(l.spare) - 1; last >= 0 {
		h, l.spare = l.spare[last], l.spare[:last]
	} else {
		l.next++
	}
	l.events = append(l.events, event{h, n})
	return h
}

func (l *timeline) free(h int32) {
	if l == nil || h < 0 {
		return
	}
	l.events = append(l.events, event{h, -1})
	l.spare = append(l.spare, h)
}

// gradients notes that a group of parameters, counted from 1, get their gradients, of
// kernels with a workspace.
func (l *timeline) gradients(group int32, workspace int64) {
	if l == nil || group <= 0 {
		return
	}
	l.events = append(l.events, event{handle: -group})
	l.temporary(workspace)
	l.events = append(l.events, event{-group, -1})
}

// allocAll notes allocations and appends their handles.
func (l *timeline) allocAll(handles []int32, sizes ...int64) []int32 {
	for _, n := range sizes {
		handles = append(handles, l.alloc(n))
	}
	return handles
}

func (l *timeline) freeAll(handles []int32) {
	for _, h := range handles {
		l.free(h)
	}
}

// temporary notes an allocation that is freed at once.
func (l *timeline) temporary(n int64) { l.free(l.alloc(n)) }

// temporaries notes two allocations that are freed at once.
func (l *timeline) temporaries(m, n int64) {
	first, second := l.alloc(m), l.alloc(n)
	l.free(first)
	l.free(second)
}

// The lengths of a history beyond which it is asked about less precisely, once only, and not at all.
const (
	maxPrecise  = 1 << 13
	maxSearched = 1 << 17
	maxEvents   = 1 << 19
)

// replayed is what an allocator made of a timeline, at its highest.
type replayed struct{ requested, allocated, reserved alloc.Bytes }

// impatient is a device that counts how often it was too small.
type impatient struct {
	*alloc.CountingDevice
	refused int
}

// Alloc implements alloc.Device.
func (d *impatient) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p, err := d.CountingDevice.Alloc(n)
	if err != nil {
		d.refused++
	}
	return p, err
}

// maxRefused is how often memory may run out and be given back before a run that still goes
// on is taken for one that does not fit: each time all of the cache is searched.
const maxRefused = 64

// replay runs the timeline through PyTorch's caching allocator on a device of a
// size, 0 for one without end. It reports false if memory ran out.
func (l *timeline) replay(device alloc.Bytes) (replayed, bool) {
	dev := &impatient{CountingDevice: alloc.NewCountingDevice(device)}
	cache := alloc.NewCache(dev, alloc.CacheConfig{})
	ptrs := make([]alloc.Ptr, l.next)
	for _, e := range l.events {
		var err error
		if e.bytes < 0 {
			err = cache.Free(ptrs[e.handle])
		} else {
			ptrs[e.handle], err = cache.Alloc(alloc.Bytes(e.bytes))
		}
		if err != nil || dev.refused > maxRefused {
			return replayed{}, false
		}
	}
	stats := cache.Stats()
	return replayed{stats.Requested.Bytes.Peak, stats.Allocated.Bytes.Peak, stats.Reserved.Bytes.Peak}, true
}

// smallest is the size of the smallest device on which the timeline runs, to within a
// part in 64, of a long history in 32, or 2 MiB: there the allocator gives cached segments back.
func (l *timeline) smallest(r replayed) alloc.Bytes {
	low, high := r.allocated, r.reserved // it runs on high
	if len(l.events) > maxSearched {
		return high
	}
	near := high / 64
	if len(l.events) > maxPrecise {
		near = high / 32
	}
	near = max(2*alloc.MiB, near)
	mid := low + near // mostly it runs there
	for ; high-low > near; mid = low + (high-low)/2 {
		if _, ok := l.replay(mid); ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// passes are the events of a forward and a backward pass. Handles are their own.
type passes struct {
	events  []event
	turn    int     // so many of them are those of the forward pass
	handles int32   // so many of them
	held    []int32 // those of the output, which the loop's code holds at the end
}

func (p passes) forward() []event  { return p.events[:p.turn] }
func (p passes) backward() []event { return p.events[p.turn:] }
