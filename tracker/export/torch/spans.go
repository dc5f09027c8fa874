package torch

import (
	"cmp"
	"slices"
	"sort"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// span is a piece of the address space that is written as a segment.
type span struct {
	addr, size int64
	pool       alloc.Pool
	stream     alloc.Stream
	expandable bool
	private    string
	own        bool // made for a buffer that no segment of the cache covers
	users      int  // buffers in an own span
}

func (s *span) end() int64 { return s.addr + s.size }

// spans is a set of spans, none of which overlap, by address. They are kept in
// short sorted runs, so that there may be one for each of a million buffers.
type spans struct {
	runs  [][]span // none empty
	bytes int64    // sum of the sizes
}

const maxRun = 512

// run returns the index of the run that an address belongs in.
func (s *spans) run(addr int64) int {
	after := sort.Search(len(s.runs), func(i int) bool { return s.runs[i][0].addr > addr })
	return max(0, after-1)
}

// within returns the place of an address in a run: of the first span that does
// not begin before it.
func within(run []span, addr int64) (int, bool) {
	return slices.BinarySearchFunc(run, addr, func(s span, addr int64) int { return cmp.Compare(s.addr, addr) })
}

// at returns the span that covers the address, valid until the set changes; nil if none does.
func (s *spans) at(addr int64) *span {
	if len(s.runs) == 0 {
		return nil
	}
	run := s.runs[s.run(addr)]
	i, exact := within(run, addr)
	if !exact {
		i--
	}
	if i < 0 || addr >= run[i].end() {
		return nil
	}
	return &run[i]
}

// insert adds a span, at least one byte and at most what is free up to the next. Its
// address must not be covered. It returns what was added.
func (s *spans) insert(n span) span {
	n.size = max(n.size, 1)
	if len(s.runs) == 0 {
		s.runs = append(s.runs, []span{n})
		s.bytes = n.size
		return n
	}
	r := s.run(n.addr)
	i, _ := within(s.runs[r], n.addr)
	if next, ok := s.next(r, i); ok {
		n.size = min(n.size, next-n.addr)
	}
	s.bytes += n.size
	s.runs[r] = slices.Insert(s.runs[r], i, n)
	if run := s.runs[r]; len(run) > maxRun {
		half := slices.Clone(run[len(run)/2:])
		s.runs[r] = slices.Clip(run[:len(run)/2])
		s.runs = slices.Insert(s.runs, r+1, half)
	}
	return n
}

// next returns the address of the span at the place, or of the first after it.
func (s *spans) next(run, i int) (int64, bool) {
	if i < len(s.runs[run]) {
		return s.runs[run][i].addr, true
	}
	if run+1 < len(s.runs) {
		return s.runs[run+1][0].addr, true
	}
	return 0, false
}

// remove takes out the span that begins at the address.
func (s *spans) remove(addr int64) {
	r := s.run(addr)
	i, _ := within(s.runs[r], addr)
	s.bytes -= s.runs[r][i].size
	s.runs[r] = slices.Delete(s.runs[r], i, i+1)
	if len(s.runs[r]) == 0 {
		s.runs = slices.Delete(s.runs, r, r+1)
	}
}

// all iterates over the spans by address.
func (s *spans) all(yield func(*span) bool) {
	for _, run := range s.runs {
		for i := range run {
			if !yield(&run[i]) {
				return
			}
		}
	}
}

// join puts a span in place of the pieces that tile it. If they do not, nothing changes.
func (s *spans) join(whole span) {
	var pieces []int64
	for at := whole.addr; at < whole.end(); {
		piece := s.at(at)
		if piece == nil || piece.addr != at || piece.end() > whole.end() {
			return
		}
		pieces = append(pieces, at)
		at = piece.end()
	}
	for _, addr := range pieces {
		s.remove(addr)
	}
	s.insert(whole)
}

// cut removes what lies from the address on, up to that size. What is left of a span on
// either side stays.
func (s *spans) cut(addr, size int64) {
	for at, end := addr, addr+size; at < end; {
		found := s.at(at)
		if found == nil {
			return
		}
		whole := *found
		s.remove(whole.addr)
		if before := at - whole.addr; before > 0 {
			rest := whole
			rest.size = before
			s.insert(rest)
		}
		if after := whole.end() - end; after > 0 {
			rest := whole
			rest.addr, rest.size = end, after
			s.insert(rest)
		}
		at = whole.end()
	}
}
