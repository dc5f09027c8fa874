package walk

import (
	"cmp"
	"slices"
	"sort"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Span is a range of addresses reserved from the driver.
type Span struct {
	Ptr        alloc.Ptr
	Size       alloc.Bytes
	Pool       string
	Stream     alloc.Stream
	Expandable bool
	Private    string // pool: see alloc.Segment
	Own        bool   // made for a buffer that no segment of the cache covers
	Users      int    // buffers in an own span
}

// End returns the address after the span.
func (s *Span) End() alloc.Ptr { return s.Ptr + alloc.Ptr(s.Size) }

// SpanOf returns the span of a segment.
func SpanOf(s *alloc.Segment) Span {
	return Span{Ptr: s.Ptr, Size: s.Size, Pool: s.Pool, Stream: s.Stream, Expandable: s.Expandable, Private: s.Private}
}

// Spans are the spans at one place in a history, sorted by address. They do not overlap. They are
// kept in short sorted runs, so that there may be a million of them.
type Spans struct {
	runs  [][]Span    // none empty
	Bytes alloc.Bytes // sum of the sizes
}

const maxRun = 512

// run returns the index of the run that an address belongs in.
func (s *Spans) run(p alloc.Ptr) int {
	after := sort.Search(len(s.runs), func(i int) bool { return s.runs[i][0].Ptr > p })
	return max(0, after-1)
}

// within returns the place of an address in a run: of the first span that does
// not begin before it.
func within(run []Span, p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(run, p, func(s Span, p alloc.Ptr) int { return cmp.Compare(s.Ptr, p) })
}

// At returns the span that covers the address, valid until the set changes; nil if none does.
func (s *Spans) At(p alloc.Ptr) *Span {
	if len(s.runs) == 0 {
		return nil
	}
	run := s.runs[s.run(p)]
	i, exact := within(run, p)
	if !exact {
		i--
	}
	if i < 0 || p >= run[i].End() {
		return nil
	}
	return &run[i]
}

// Insert adds a span, at least one byte and at most what is free up to the next. Its
// address must not be covered. It returns what was added.
func (s *Spans) Insert(n Span) Span {
	n.Size = max(n.Size, 1)
	if len(s.runs) == 0 {
		s.runs = append(s.runs, []Span{n})
		s.Bytes = n.Size
		return n
	}
	r := s.run(n.Ptr)
	i, _ := within(s.runs[r], n.Ptr)
	if next, ok := s.next(r, i); ok {
		n.Size = min(n.Size, alloc.Bytes(next-n.Ptr))
	}
	s.Bytes += n.Size
	s.runs[r] = slices.Insert(s.runs[r], i, n)
	if run := s.runs[r]; len(run) > maxRun {
		half := slices.Clone(run[len(run)/2:])
		s.runs[r] = slices.Clip(run[:len(run)/2])
		s.runs = slices.Insert(s.runs, r+1, half)
	}
	return n
}

// next returns the address of the span at the place, or of the first after it.
func (s *Spans) next(run, i int) (alloc.Ptr, bool) {
	if i < len(s.runs[run]) {
		return s.runs[run][i].Ptr, true
	}
	if run+1 < len(s.runs) {
		return s.runs[run+1][0].Ptr, true
	}
	return 0, false
}

// Remove takes out the span that begins at the address.
func (s *Spans) Remove(p alloc.Ptr) {
	r := s.run(p)
	i, _ := within(s.runs[r], p)
	s.Bytes -= s.runs[r][i].Size
	s.runs[r] = slices.Delete(s.runs[r], i, i+1)
	if len(s.runs[r]) == 0 {
		s.runs = slices.Delete(s.runs, r, r+1)
	}
}

// All iterates over the spans by address.
func (s *Spans) All(yield func(*Span) bool) {
	for _, run := range s.runs {
		for i := range run {
			if !yield(&run[i]) {
				return
			}
		}
	}
}

// Join puts a span in place of the pieces that tile it. If they do not, nothing changes.
func (s *Spans) Join(whole Span) {
	for at := whole.Ptr; at < whole.End(); {
		piece := s.At(at)
		if piece == nil || piece.Ptr != at || piece.End() > whole.End() {
			return
		}
		at = piece.End()
	}
	s.Cut(whole.Ptr, whole.Size)
	s.Insert(whole)
}

// Cut removes the addresses from p up to p+size. The rest of a span on either side stays.
func (s *Spans) Cut(p alloc.Ptr, size alloc.Bytes) {
	for at, end := p, p+alloc.Ptr(size); at < end; {
		found := s.At(at)
		if found == nil {
			return
		}
		whole := *found
		s.Remove(whole.Ptr)
		if whole.Ptr < at {
			rest := whole
			rest.Size = alloc.Bytes(at - whole.Ptr)
			s.Insert(rest)
		}
		if end < whole.End() {
			rest := whole
			rest.Ptr, rest.Size = end, alloc.Bytes(whole.End()-end)
			s.Insert(rest)
		}
		at = whole.End()
	}
}
