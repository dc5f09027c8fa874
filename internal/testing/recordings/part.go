package recordings

import (
	"fmt"
	"slices"
)

// Part is what one cache would have done of a recording: PyTorch's allocator has one for
// each device and private pool.
type Part struct {
	Device int
	Pool   [2]int64
	After  []Segment // at the end
	Events []Event   // those of no private pool: events do not name theirs
}

// String names a part by its device and its pool.
func (p Part) String() string {
	return fmt.Sprintf("device %d, pool %v", p.Device, p.Pool)
}

// Parts returns the parts, in the order in which they are met in events, then
// in segments.
func (r *Recording) Parts() []*Part {
	var parts []*Part
	part := func(device int, pool [2]int64) *Part {
		i := slices.IndexFunc(parts, func(p *Part) bool { return p.Device == device && p.Pool == pool })
		if i < 0 {
			i = len(parts)
			parts = append(parts, &Part{Device: device, Pool: pool})
		}
		return parts[i]
	}
	for i, d := range r.Devices {
		if len(d.Events) > 0 {
			part(i, [2]int64{}).Events = d.Events
		}
		for _, s := range d.Segments {
			p := part(i, s.Pool)
			p.After = append(p.After, s)
		}
	}
	return parts
}
