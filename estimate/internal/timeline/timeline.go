// Package timeline is a list of allocations and frees, and asks the caching allocator of alloc/cache how much it reserves
// for them and how small a device can be. It knows no tape.
package timeline

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
)

// Timeline is a history of allocations and frees in the order in which PyTorch makes
// them. A nil timeline takes no notes.
type Timeline struct {
	Events []Event
	spare  []int32 // handles that were freed
	Next   int32
}

// Event is an allocation of so many bytes or, where they are negative, a free. A handle
// below 0 stands for the gradients of a group of parameters, -1 for the first; they are freed
// when they were added to those that were there.
type Event struct {
	Handle int32
	Bytes  int64
}

// Alloc notes an allocation and returns the handle to free it by. Nothing is noted
// for no bytes, whose handle is -1.
func (l *Timeline) Alloc(n int64) int32 {
	if l == nil || n <= 0 {
		return -1
	}
	h := l.Next
	if last := len(l.spare) - 1; last >= 0 {
		h, l.spare = l.spare[last], l.spare[:last]
	} else {
		l.Next++
	}
	l.Events = append(l.Events, Event{h, n})
	return h
}

func (l *Timeline) Free(h int32) {
	if l == nil || h < 0 {
		return
	}
	l.Events = append(l.Events, Event{h, -1})
	l.spare = append(l.spare, h)
}

// Gradients notes that a group of parameters, counted from 1, get their gradients, of
// kernels with a workspace.
func (l *Timeline) Gradients(group int32, workspace int64) {
	if l == nil || group <= 0 {
		return
	}
	l.Events = append(l.Events, Event{Handle: -group})
	l.Temporary(workspace)
	l.Events = append(l.Events, Event{-group, -1})
}

// AllocAll notes allocations and appends their handles.
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

// Temporary notes an allocation that is freed at once.
func (l *Timeline) Temporary(n int64) { l.Free(l.Alloc(n)) }

// Temporaries notes two allocations that are freed at once.
func (l *Timeline) Temporaries(m, n int64) {
	first, second := l.Alloc(m), l.Alloc(n)
	l.Free(first)
	l.Free(second)
}

// The lengths of a history beyond which it is asked about less precisely, once only, and not at all.
const (
	maxPrecise  = 1 << 13
	maxSearched = 1 << 17
	MaxEvents   = 1 << 19
)

// replayed is what an allocator made of a timeline, at its highest.
type replayed struct{ Requested, Allocated, Reserved alloc.Bytes }

// impatient is a device that counts how often it was too small.
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

// maxRefused is how often memory may run out and be given back before a run that still goes
// on is taken for one that does not fit: each time all of the cache is searched.
const maxRefused = 64

// Replay runs the timeline through PyTorch's caching allocator on a device of a
// size, 0 for one without end. It reports false if memory ran out.
func (l *Timeline) Replay(device alloc.Bytes) (replayed, bool) {
	dev := &impatient{Device: counting.New(device)}
	cache, err := cache.New(dev, cache.Config{})
	if err != nil {
		return replayed{}, false
	}
	ptrs := make([]alloc.Ptr, l.Next)
	for _, e := range l.Events {
		var err error
		if e.Bytes < 0 {
			err = cache.Free(ptrs[e.Handle])
		} else {
			ptrs[e.Handle], err = cache.Alloc(alloc.Bytes(e.Bytes))
		}
		if err != nil || dev.refused > maxRefused {
			return replayed{}, false
		}
	}
	stats := cache.Stats()
	return replayed{stats.Requested.Bytes.Peak, stats.Allocated.Bytes.Peak, stats.Reserved.Bytes.Peak}, true
}

// Smallest is the size of the smallest device on which the timeline runs, to within a
// part in 64, of a long history in 32, or 2 MiB: there the allocator gives cached segments back.
func (l *Timeline) Smallest(r replayed) alloc.Bytes {
	low, high := r.Allocated, r.Reserved // it runs on high
	if len(l.Events) > maxSearched {
		return high
	}
	near := high / 64
	if len(l.Events) > maxPrecise {
		near = high / 32
	}
	near = max(2*alloc.MiB, near)
	mid := low + near // mostly it runs there
	for ; high-low > near; mid = low + (high-low)/2 {
		if _, ok := l.Replay(mid); ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// Passes are the events of a forward and a backward pass. Handles are their own.
type Passes struct {
	Events  []Event
	Turn    int     // so many of them are those of the forward pass
	Handles int32   // so many of them
	Held    []int32 // those of the output, which the loop's code holds at the end
}

func (p Passes) Forward() []Event { return p.Events[:p.Turn] }

func (p Passes) Backward() []Event { return p.Events[p.Turn:] }
