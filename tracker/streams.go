package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// streams numbers the streams that buffers were allocated for: records and events have room
// for no handle. Numbers are not given back.
type streams struct {
	handles []alloc.Stream // only ever appended to, so that a copy of the slice stays good
	numbers map[alloc.Stream]uint8
}

func newStreams() streams { return streams{handles: []alloc.Stream{0}} }

// at returns the number of a stream. The streams that are too many are one.
func (s *streams) at(handle alloc.Stream) uint8 {
	if handle == 0 {
		return 0
	}
	if n, ok := s.numbers[handle]; ok {
		return n
	}
	const others = snapshot.MaxStreams - 1
	switch len(s.handles) {
	case snapshot.MaxStreams:
		return others
	case others:
		handle = snapshot.OtherStreams
	}
	if s.numbers == nil {
		s.numbers = make(map[alloc.Stream]uint8)
	}
	n := uint8(len(s.handles))
	s.handles = append(s.handles, handle)
	s.numbers[handle] = n
	return n
}
