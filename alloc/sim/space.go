package sim

import (
	"cmp"
	"slices"
)

// span is a run of n units that starts at unit first.
type span struct{ first, n uint64 }

func (s span) end() uint64 { return s.first + s.n }

// space gives out spans of a range of units, lowest first. It keeps the holes,
// in order, no two of them touching.
type space struct{ holes []span }

func newSpace(units uint64) *space { return &space{holes: []span{{0, units}}} }

// take returns the start of the lowest hole of n units, which it fills.
func (s *space) take(n uint64) (first uint64, ok bool) {
	for i, hole := range s.holes {
		switch {
		case hole.n > n:
			s.holes[i] = span{hole.first + n, hole.n - n}
			return hole.first, true
		case hole.n == n:
			s.holes = slices.Delete(s.holes, i, i+1)
			return hole.first, true
		}
	}
	return 0, false
}

// give makes a span that was taken a hole again.
func (s *space) give(freed span) {
	i, _ := slices.BinarySearchFunc(s.holes, freed.first, func(hole span, first uint64) int {
		return cmp.Compare(hole.first, first)
	})
	before, after := i, i // the holes that freed touches, and is joined with
	if i > 0 && s.holes[i-1].end() == freed.first {
		before--
		freed = span{s.holes[before].first, s.holes[before].n + freed.n}
	}
	if i < len(s.holes) && freed.end() == s.holes[i].first {
		freed.n += s.holes[i].n
		after++
	}
	s.holes = slices.Replace(s.holes, before, after, freed)
}
