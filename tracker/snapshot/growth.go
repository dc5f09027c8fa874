package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Growth is a line of code whose live bytes rise from mark to mark.
type Growth struct {
	Site    mem.Frame `json:"site"`
	Callers           // of the buffers that were gained
	Marks   int       `json:"marks"`  // over which they were
	Gained  mem.Tally `json:"gained"` // from one low-water mark to another
}

// PerMark returns the slope: bytes gained from one mark to the next, on average.
func (g Growth) PerMark() alloc.Bytes { return g.Gained.Bytes / alloc.Bytes(g.Marks) }

// String says how much the line grows, and how it is reached:
//
//	main.go:88 main.(*service).remember grows by 1.0 MiB a mark: 93.0 MiB more over 93 marks
//		path: main.(*service).remember <- (*service).handle
func (g Growth) String() string {
	return fmt.Sprintf("%v grows by %v a mark: %v more over %d marks\n%v", g.Site, g.PerMark(), g.Gained.Bytes, g.Marks, g.Callers)
}

// Growth returns the lines of code whose live bytes rise over the marks, steeper
// ones first: leaks, and caches without a bound. It does not matter where in its
// rounds a program calls Track, nor how often.
//
// The marks after the first few (see tracker.Config.Warmup) are divided into 16 to 32 windows of equal
// length. Only the low-water mark of a window counts, the lowest level at its
// marks, so memory that is taken and freed again does not. A line grows if
//
//   - its low-water mark rose from one window to the next at least eight times,
//   - all falls together are at most an eighth of all rises,
//   - the last quarter of the windows brought at least a sixth of the gain,
//   - and at least half of the buffers that it gained are older than 99 % of its freed ones
//     became. This does not apply if it gained no buffers, only larger ones.
//
// So it takes at least 32 marks, and eight windows with a rise. A leak that begins
// late is found after a quarter to a half of all marks. A cache that fills is growth until it
// is nearly full. Of more than 1,024 lines, those with the most live bytes are followed.
func (s *Snapshot) Growth() []Growth {
	found, began := s.tables.Growing, s.tables.Warm
	freed, now := s.tables.Lifetimes, s.Time.Sub(s.tables.Epoch)
	lines := s.lines(leakFilter{}, func(site mem.Frame, _ stackCount) bool { return found[site] != nil })
	growths := make([]Growth, 0, len(found))
	for site, its := range found {
		g := Growth{Site: site, Marks: its.Span(), Gained: its.Gain()}
		if l := lines[site]; l != nil {
			gained := l.gained(began, g.Gained.Count)
			if g.Gained.Count > 0 && freed[site].UsuallyFreed(now, gained) {
				continue
			}
			g.Callers = newCallers(gained, l.stacks, s.tables.Stacks.Path)
		}
		growths = append(growths, g)
	}
	slices.SortFunc(growths, func(x, y Growth) int {
		return cmp.Or(cmp.Compare(y.PerMark(), x.PerMark()), x.Site.Compare(y.Site))
	})
	return growths
}
