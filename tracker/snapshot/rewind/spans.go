package rewind

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// span is a range of addresses that was held from the driver.
type span struct {
	ptr        alloc.Ptr
	size       alloc.Bytes
	pool       alloc.Pool
	stream     alloc.Stream
	expandable bool
	private    string
}

func (s span) end() alloc.Ptr { return s.ptr + alloc.Ptr(s.size) }

// spans are some by address, which do not overlap.
type spans struct {
	list  []span
	torn  bool // a change did not fit
	moved int  // entries that changes have moved
}

// maxMoved bounds the work that a hostile history can cause: about a second.
const maxMoved = 1 << 27

// at returns where the span is that an address lies in, or where it would be.
func (s *spans) at(p alloc.Ptr) (int, bool) {
	i, same := slices.BinarySearchFunc(s.list, p, func(s span, p alloc.Ptr) int { return cmp.Compare(s.ptr, p) })
	if same {
		return i, true
	}
	if i > 0 && p < s.list[i-1].end() {
		return i - 1, true
	}
	return i, false
}

// add enters a span. One that is expandable becomes one with its neighbours.
func (s *spans) add(x span) {
	i, inside := s.at(x.ptr)
	if s.gaveUp(i) || inside || x.size <= 0 || x.end() < x.ptr || i < len(s.list) && s.list[i].ptr < x.end() {
		s.torn = true
		return
	}
	from, to := i, i
	if x.expandable && i > 0 && s.list[i-1].joins(x) {
		from--
		x = span{s.list[from].ptr, s.list[from].size + x.size, s.list[from].pool, x.stream, true, s.list[from].private}
	}
	if x.expandable && i < len(s.list) && x.joins(s.list[i]) {
		x.size += s.list[i].size
		x.pool = s.list[i].pool
		to++
	}
	s.list = slices.Replace(s.list, from, to, x)
}

func (s span) joins(next span) bool {
	return s.end() == next.ptr && s.expandable && next.expandable && s.stream == next.stream
}

// remove takes addresses out, which lie in one span.
func (s *spans) remove(p alloc.Ptr, n alloc.Bytes) {
	i, inside := s.at(p)
	if s.gaveUp(i) || !inside || n <= 0 || alloc.Bytes(s.list[i].end()-p) < n {
		s.torn = true
		return
	}
	whole := s.list[i]
	var left []span
	if p > whole.ptr {
		left = append(left, span{whole.ptr, alloc.Bytes(p - whole.ptr), whole.pool, whole.stream, whole.expandable, whole.private})
	}
	if end := p + alloc.Ptr(n); end < whole.end() {
		left = append(left, span{end, alloc.Bytes(whole.end() - end), whole.pool, whole.stream, whole.expandable, whole.private})
	}
	s.torn = s.torn || len(left) > 0 && !whole.expandable
	s.list = slices.Replace(s.list, i, i+1, left...)
}

func (s *spans) gaveUp(i int) bool {
	s.moved += len(s.list) - i
	return s.moved > maxMoved
}

// segments tiles the spans with the live blocks, whose addresses are sorted; nil if they
// do not fit.
func (w *rewind) segments(live []alloc.Ptr) []alloc.Segment {
	if w.reserved.torn {
		return nil
	}
	out := make([]alloc.Segment, 0, len(w.reserved.list))
	for _, s := range w.reserved.list {
		for len(live) > 0 && live[0] < s.ptr {
			if !w.live[live[0]].foreign {
				return nil
			}
			live = live[1:]
		}
		n, _ := slices.BinarySearch(live, s.end())
		blocks := w.tile(s, live[:n])
		live = live[n:]
		segment := alloc.Segment{Ptr: s.ptr, Size: s.size, Pool: s.pool, Stream: s.stream, Expandable: s.expandable, Private: s.private, Blocks: blocks}
		if segment.Check() != nil {
			return nil
		}
		out = append(out, segment)
	}
	for _, p := range live {
		if len(out) > 0 && !w.live[p].foreign {
			return nil
		}
	}
	return out
}

// tile returns the blocks of a span: those that are live, and the free ones between them.
func (w *rewind) tile(s span, live []alloc.Ptr) []alloc.Block {
	const keeps = 1 * alloc.MiB // so much stays with a large block
	blocks := make([]alloc.Block, 0, 2*len(live)+1)
	at := s.ptr
	hole := func(to alloc.Ptr) {
		size := alloc.Bytes(to - at)
		switch last := len(blocks) - 1; {
		case size <= 0:
		case size <= keeps && s.pool == alloc.LargePool && !s.expandable && last >= 0 && blocks[last].State != alloc.Inactive:
			blocks[last].Size += size
			if b := w.live[blocks[last].Ptr]; b.tensor != nil {
				b.allocated += size
				w.live[blocks[last].Ptr] = b
			}
		default:
			blocks = append(blocks, alloc.Block{Ptr: at, Size: size, State: alloc.Inactive})
		}
	}
	for _, p := range live {
		b := w.live[p]
		if b.foreign {
			continue
		}
		hole(p)
		state := alloc.Allocated
		if b.pending {
			state = alloc.Pending
		}
		blocks = append(blocks, alloc.Block{Ptr: p, Size: b.allocated, Requested: b.requested, State: state})
		at = p + alloc.Ptr(b.allocated)
	}
	hole(s.end())
	return blocks
}
