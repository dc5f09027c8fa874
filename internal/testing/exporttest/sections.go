package exporttest

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Section is a section of a history, in microseconds since its beginning.
type Section struct {
	Path       string
	Start, End float64
}

// Sections returns a history's sections, those that are open as if they ended
// with it.
func Sections(r *snapshot.Dump) []Section {
	begin := r.Snapshot.Time
	for e := range r.Events() {
		begin = e.Time
		break
	}
	micros := func(at time.Time) float64 { return float64(at.Sub(begin)) / float64(time.Microsecond) }
	end := micros(r.Snapshot.Time)
	bySpan := make(map[uint64]Section)
	for e := range r.Events() {
		switch e.Action {
		case mem.SectionBegan:
			bySpan[e.Span] = Section{e.Section, micros(e.Time), end}
		case mem.SectionEnded:
			bySpan[e.Span] = Section{e.Section, bySpan[e.Span].Start, micros(e.Time)}
		}
	}
	return slices.Collect(maps.Values(bySpan))
}
