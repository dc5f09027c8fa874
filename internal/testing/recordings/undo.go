package recordings

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const (
	blockUnit  = alloc.Bytes(512)
	splitLimit = 1 * alloc.MiB // less than that stays with a large block
)

// Before returns the segments before the first of the events, given those after
// the last: it undoes each event, from the last one on. A block that is freed in the
// events has an exact size only if it was allocated in them; of others the size is
// the request rounded up, with what a large segment had left behind it, if that
// is at most 1 MiB; the first block that is made this near behind it tells.
func Before(after []Segment, events []Event) []Segment {
	u := &undo{segments: make([]Segment, 0, len(after))}
	for _, s := range after {
		s.Blocks = slices.Clone(s.Blocks)
		u.segments = append(u.segments, s)
	}
	for _, e := range slices.Backward(events) {
		switch e.Action {
		case "alloc":
			u.alloc(e)
		case "free_completed":
			u.free(e)
		case "segment_map", "segment_unmap":
			return nil // which segments there were is not known: the events must be complete
		case "segment_alloc":
			u.segments = slices.DeleteFunc(u.segments, func(s Segment) bool { return s.Ptr == e.Ptr })
		case "segment_free":
			s := Segment{Ptr: e.Ptr, Size: e.Size, Small: e.Size <= 2*alloc.MiB, Stream: e.Stream}
			s.Blocks = []Block{{Ptr: e.Ptr, Size: e.Size}}
			u.segments = append(u.segments, s)
			slices.SortFunc(u.segments, func(a, b Segment) int { return cmp.Compare(a.Ptr, b.Ptr) })
		}
	}
	u.bound(events)
	return u.segments
}

type undo struct{ segments []Segment }

// find returns the segment that an address lies in, and the index of its block.
func (u *undo) find(p alloc.Ptr) (*Segment, int) {
	i, same := slices.BinarySearchFunc(u.segments, p, func(s Segment, p alloc.Ptr) int { return cmp.Compare(s.Ptr, p) })
	if !same {
		i--
	}
	s := &u.segments[i]
	for j := range s.Blocks {
		if p < s.Blocks[j].end() {
			return s, j
		}
	}
	panic("an event's address lies in no segment")
}

// alloc makes an allocated block free, as one with its free neighbours.
func (u *undo) alloc(e Event) {
	s, i := u.find(e.Ptr)
	b := &s.Blocks[i]
	if !b.Allocated || b.Ptr != e.Ptr {
		panic("an alloc gave what is not allocated after it")
	}
	b.Allocated, b.Requested = false, 0
	from, to := i, i+1
	if i > 0 && !s.Blocks[i-1].Allocated {
		from--
	}
	if to < len(s.Blocks) && !s.Blocks[to].Allocated {
		to++
	}
	free := Block{Ptr: s.Blocks[from].Ptr}
	free.Size = alloc.Bytes(s.Blocks[to-1].end() - free.Ptr)
	s.Blocks = slices.Replace(s.Blocks, from, to, free)
}

// free makes a part of a free block allocated.
func (u *undo) free(e Event) {
	s, i := u.find(e.Ptr)
	hole := s.Blocks[i]
	b := Block{Ptr: e.Ptr, Size: (max(e.Size, 1) + blockUnit - 1) &^ (blockUnit - 1), Requested: e.Size, Allocated: true}
	rest := alloc.Bytes(hole.end() - b.end())
	if hole.Allocated || rest < 0 {
		panic("a block was freed that is not free after it")
	}
	if !s.Small && rest <= splitLimit {
		b.Size += rest
	}
	var pieces []Block
	if b.Ptr > hole.Ptr {
		pieces = append(pieces, Block{Ptr: hole.Ptr, Size: alloc.Bytes(b.Ptr - hole.Ptr)})
	}
	pieces = append(pieces, b)
	if b.end() < hole.end() {
		pieces = append(pieces, Block{Ptr: b.end(), Size: alloc.Bytes(hole.end() - b.end())})
	}
	s.Blocks = slices.Replace(s.Blocks, i, i+1, pieces...)
}

// bound gives large blocks the end that the first block tells which is made at most 1 MiB behind them.
func (u *undo) bound(events []Event) {
	gone := make(map[alloc.Ptr]bool)
	for _, e := range events {
		switch e.Action {
		case "free_requested", "free_completed":
			gone[e.Ptr] = true
		case "alloc":
			at, _ := slices.BinarySearchFunc(u.segments, e.Ptr+1, func(s Segment, p alloc.Ptr) int { return cmp.Compare(s.Ptr, p) })
			if at == 0 || u.segments[at-1].Small || e.Ptr >= u.segments[at-1].Ptr+alloc.Ptr(u.segments[at-1].Size) {
				continue
			}
			blocks := u.segments[at-1].Blocks
			i := slices.IndexFunc(blocks, func(b Block) bool { return b.Ptr < e.Ptr && e.Ptr < b.end() })
			if i < 1 || blocks[i].Allocated || !blocks[i-1].Allocated || gone[blocks[i-1].Ptr] {
				continue
			}
			if more := alloc.Bytes(e.Ptr - blocks[i].Ptr); more <= splitLimit {
				blocks[i-1].Size += more
				blocks[i].Ptr, blocks[i].Size = e.Ptr, blocks[i].Size-more
			}
		}
	}
}
