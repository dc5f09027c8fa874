package bands

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Detail is what is known of one allocation.
type Detail struct {
	ID         uint32
	Born, Died uint32 // see Index.Life
	Requested  alloc.Bytes
	Allocated  alloc.Bytes
	Ptr        alloc.Ptr
	Tensor     *tables.Tensor // nil if nothing is known
	Label      string
	Section    string
	Stream     alloc.Stream
	StackID    uint32
	Stack      mem.Stack
	Line       uint32
	FreedAt    mem.Stack // nil if it is unknown
	Below      int64     // bytes below it when it began
	Before     *uint32   // the allocation that had one of its addresses last before it
	After      *uint32   // and that had one first after it
	BeforeMore int       // others that overlap it, and ended before it began
	AfterMore  int
}

// Describe returns what is known of an allocation, whose number must be below Len.
func Describe(x *Index, id uint32) Detail {
	born, died := x.Life(id)
	d := Detail{ID: id, Born: born, Died: died, Requested: alloc.Bytes(x.Bytes(id)), Ptr: x.ptrs[id], StackID: x.stacks[id]}
	d.Stack, d.Line = x.Stack(d.StackID)
	d.Allocated = allocatedBytes(x, id)
	if e, last := source(x, id); e != nil {
		d.Tensor, d.Section, d.Stream = e.Tensor, section(x.past.Sections, uint32(e.Section)), tables.StreamOf(x.past.Streams, e.Stream)
	} else if last != nil {
		site := &x.lists.Sites[last.Site]
		d.Tensor, d.Section, d.Stream = site.Tensor, section(x.lists.Sections, site.Section), tables.StreamOf(x.lists.Streams, site.Stream)
	}
	if a := atEnd(x, id); a != nil {
		d.Label = a.Label
	}
	if died != Forever {
		if freed := x.past.FreedAt(x.First() + uint64(died) - 1); freed != 0 {
			d.FreedAt = x.past.Stacks.Stack(freed)
		}
	}
	d.Below, _ = x.All.Offset(id, born)
	neighbours(x, &d)
	return d
}

func section(sections []string, n uint32) string {
	if int(n) >= len(sections) {
		return ""
	}
	return sections[n]
}

// source returns the event that describes an allocation, or its entry at the end if it has no event.
func source(x *Index, id uint32) (*tables.EventEntry, *tables.AllocationEntry) {
	born, died := x.Life(id)
	switch {
	case born > 0:
		return &x.events[born-1], nil
	case x.initial[id] >= 0:
		return nil, &x.lists.Allocations[x.initial[id]]
	case died != Forever:
		return &x.events[died-1], nil
	}
	return nil, nil
}

// allocatedBytes returns the bytes of an allocation after rounding.
func allocatedBytes(x *Index, id uint32) alloc.Bytes {
	if a := atEnd(x, id); a != nil {
		return a.Allocated
	}
	if e, _ := source(x, id); e != nil {
		return e.Allocated
	}
	return alloc.Bytes(x.Bytes(id))
}

// atEnd returns the entry of an allocation that is live at the end; nil if it is not, or if the snapshot does not list it.
func atEnd(x *Index, id uint32) *tables.AllocationEntry {
	born, died := x.Life(id)
	if died != Forever {
		return nil
	}
	if born == 0 {
		if i := x.initial[id]; i >= 0 {
			return &x.lists.Allocations[i]
		}
		return nil
	}
	seq := x.First() + uint64(born) - 1
	i, found := slices.BinarySearchFunc(x.lists.Allocations, seq, func(a tables.AllocationEntry, seq uint64) int { return cmp.Compare(a.Seq, seq) })
	if !found || x.lists.Allocations[i].Ptr != x.ptrs[id] {
		return nil
	}
	return &x.lists.Allocations[i]
}

// labels calls do with the label of each allocation that has one.
func labels(x *Index, do func(id uint32, label string)) {
	for id := range uint32(x.Len()) {
		if _, died := x.Life(id); died != Forever {
			continue
		}
		if a := atEnd(x, id); a != nil && a.Label != "" {
			do(id, a.Label)
		}
	}
}

// neighbours finds who had the addresses of an allocation before it, and after.
func neighbours(x *Index, d *Detail) {
	from, to := d.Ptr, d.Ptr+alloc.Ptr(max(1, d.Allocated))
	for id, p := range x.ptrs {
		// Rounding makes a block at most as much larger than its request as the request is large, or a megabyte.
		if p >= to || uint32(id) == d.ID {
			continue
		}
		if end := p + alloc.Ptr(max(1, x.All.bytes[id])); end <= from {
			if slack := max(alloc.Ptr(alloc.MiB), alloc.Ptr(x.All.bytes[id])); end+slack <= from || p+alloc.Ptr(allocatedBytes(x, uint32(id))) <= from {
				continue
			}
		}
		it := uint32(id)
		born, died := x.Life(it)
		switch {
		case died <= d.Born:
			d.BeforeMore++
			if d.Before == nil || died >= x.All.died[*d.Before] {
				d.Before = &it
			}
		case born >= d.Died:
			d.AfterMore++
			if d.After == nil || born < x.All.born[*d.After] {
				d.After = &it
			}
		}
	}
	d.BeforeMore, d.AfterMore = max(0, d.BeforeMore-1), max(0, d.AfterMore-1)
}
