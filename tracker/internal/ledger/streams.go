package ledger

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// streams numbers the streams that buffers were allocated for: records and events have room
// for no handle. Numbers are not given back.
type streams struct {
	Handles []alloc.Stream // only ever appended to, so that a copy of the slice stays good
	numbers map[alloc.Stream]uint8
}

func newStreams() streams { return streams{Handles: []alloc.Stream{0}} }

// At returns the number of a stream. The streams that are too many are one.
func (s *streams) At(handle alloc.Stream) uint8 {
	if handle == 0 {
		return 0
	}
	if n, ok := s.numbers[handle]; ok {
		return n
	}
	const others = snapshot.MaxStreams - 1
	switch len(s.Handles) {
	case snapshot.MaxStreams:
		return others
	case others:
		handle = snapshot.OtherStreams
	}
	if s.numbers == nil {
		s.numbers = make(map[alloc.Stream]uint8)
	}
	n := uint8(len(s.Handles))
	s.Handles = append(s.Handles, handle)
	s.numbers[handle] = n
	return n
}
