package snapshot

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
