package bands

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Note is an event that is of no buffer: a mark, or a request that was refused.
type Note struct {
	Moment uint32 // after it
	Action mem.Action
	Number int64 // of a mark
	Bytes  int64 // that were refused
}

// Notes iterates over the marks and the refused requests.
func Notes(x *Index) iter.Seq[Note] {
	return func(yield func(Note) bool) {
		for i := range x.events {
			e := &x.events[i]
			n := Note{Moment: uint32(i) + 1, Action: e.Action}
			switch e.Action {
			case mem.Marked:
				n.Number = int64(e.Allocated)
			case mem.OutOfMemory:
				n.Bytes = int64(e.Allocated)
			default:
				continue
			}
			if !yield(n) {
				return
			}
		}
	}
}

// Section is a part of the program's run, from a moment to another.
type Section struct {
	Name       string
	Begin, End uint32
}

// Sections returns the longest sections, at most a number of them, by their beginning. A section that began before the history
// begins with it, and one that has not ended ends with it.
func Sections(x *Index, most int) (out []Section) {
	open := make(map[int64]int)
	for i := range x.events {
		e := &x.events[i]
		span, moment := int64(e.Allocated), uint32(i)+1
		switch e.Action {
		case mem.SectionBegan:
			open[span] = len(out)
			out = append(out, Section{section(x.past.Sections, uint32(e.Section)), moment, x.Moments() - 1})
		case mem.SectionEnded:
			if at, ok := open[span]; ok {
				out[at].End = moment
				delete(open, span)
			} else {
				out = append(out, Section{section(x.past.Sections, uint32(e.Section)), 0, moment})
			}
		}
	}
	if len(out) > most {
		slices.SortStableFunc(out, func(a, b Section) int { return cmp.Compare(b.End-b.Begin, a.End-a.Begin) })
		out = out[:most]
	}
	slices.SortStableFunc(out, func(a, b Section) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(b.End, a.End)) })
	return out
}
