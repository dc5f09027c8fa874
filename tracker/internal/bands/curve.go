package bands

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// curve has the allocated and the reserved bytes at the first moment of each block.
type curve struct {
	allocated, reserved []int64
	segments            bool // the events include segments: otherwise nothing is known of how the reserved bytes came to be
	most                int64
}

// newCurve walks from the end, whose levels the snapshot has, to the beginning. What an inconsistent history makes negative
// is 0.
func newCurve(x *Index) curve {
	n := (int(x.Moments()) + block - 1) / block
	c := curve{allocated: make([]int64, n), reserved: make([]int64, n)}
	s := x.Dump.Snapshot
	allocated, reserved := int64(s.Allocated), int64(s.Reserved)
	if x.host {
		allocated, reserved = 0, int64(s.HostReserved)
		for _, a := range x.lists.Allocations {
			if x.lists.Sites[a.Site].Tensor.Memory.OnHost() {
				allocated += int64(a.Allocated)
			}
		}
	}
	c.most = reserved
	for m := len(x.events); ; m-- {
		if m%block == 0 {
			c.allocated[m/block], c.reserved[m/block] = max(0, allocated), max(0, reserved)
		}
		if m == 0 {
			break
		}
		a, r := x.change(&x.events[m-1])
		c.segments = c.segments || r != 0
		allocated, reserved = allocated-a, reserved-r
		c.most = max(c.most, reserved)
	}
	return c
}

// change returns what an event adds to the allocated and the reserved bytes.
func (x *Index) change(e *tables.EventEntry) (allocated, reserved int64) {
	switch walk.Of(e.Action) {
	case walk.Begin:
		if x.host == (e.Tensor != nil && e.Tensor.Memory.OnHost()) {
			return int64(e.Allocated), 0
		}
	case walk.End:
		if x.host == (e.Tensor != nil && e.Tensor.Memory.OnHost()) {
			return -int64(e.Allocated), 0
		}
	case walk.Grow:
		if !x.host {
			return 0, int64(e.Allocated)
		}
	case walk.Shrink:
		if !x.host {
			return 0, -int64(e.Allocated)
		}
	}
	return 0, 0
}

// Allocated returns the allocated and the reserved bytes at a moment. known is false if the history does not say how much was
// reserved.
func (x *Index) Allocated(moment uint32) (allocated, reserved int64, known bool) {
	b := moment / block
	allocated, reserved = x.curve.allocated[b], x.curve.reserved[b]
	for m := b * block; m < moment; m++ {
		a, r := x.change(&x.events[m])
		allocated, reserved = allocated+a, reserved+r
	}
	return max(0, allocated), max(0, reserved), x.curve.segments || moment == x.Moments()-1
}

// MostReserved returns the most bytes that were reserved at a moment; false if the history does not say it.
func (x *Index) MostReserved() (int64, bool) { return x.curve.most, x.curve.segments }
