package tracker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Growth is a line of code whose live bytes rose at each of the last marks.
type Growth struct {
	Site   Frame
	Marks  int   // how many in a row, up to the last
	Gained Tally // over them
}

// PerMark returns the slope: bytes gained from one mark to the next, on average.
func (g Growth) PerMark() alloc.Bytes { return g.Gained.Bytes / alloc.Bytes(g.Marks) }

// String prints it on one line.
func (g Growth) String() string {
	return fmt.Sprintf("%v grows by %v a mark: %v more over the last %d marks", g.Site, g.PerMark(), g.Gained.Bytes, g.Marks)
}

const (
	defaultWarmup      = 3
	defaultGrowthMarks = 10
)

// Growth returns the lines of code whose live bytes rose at each of the last n
// marks and more, steeper ones first; 0 means 10 marks. The first marks of the
// program are left out: see Config.Warmup. In a loop with one Track in each
// round, that is a leak, or a cache without a bound; memory that merely goes up
// and down by chance would have to rise ten times in a row. A mark at which a
// line did not rise ends its row: where rounds have several marks, compare
// snapshots of different rounds with Leaks and Since instead.
func (t *MemTracker) Growth(n int) []Growth {
	t.marking.Lock()
	defer t.marking.Unlock()
	var found []Growth
	for _, rise := range t.growth.rising {
		if rise.Marks >= cmp.Or(max(n, 0), defaultGrowthMarks) {
			found = append(found, rise)
		}
	}
	slices.SortFunc(found, func(x, y Growth) int {
		return cmp.Or(cmp.Compare(y.PerMark(), x.PerMark()), compareFrame(x.Site, y.Site))
	})
	return found
}

// growth follows the lines of code whose live bytes rise from mark to mark. It
// forgets a line as soon as it does not, and so never holds more than one mark
// changes. The marking lock guards it.
type growth struct {
	warmup  int
	changes map[Frame]Tally  // of the mark being made
	rising  map[Frame]Growth // at the last mark
	spare   map[Frame]Growth
}

func newGrowth(warmup int) growth {
	return growth{
		warmup:  max(0, cmp.Or(warmup, defaultWarmup)),
		changes: make(map[Frame]Tally),
		rising:  make(map[Frame]Growth),
		spare:   make(map[Frame]Growth),
	}
}

func (g *growth) note(site Frame, change Tally) { g.changes[site] = g.changes[site].Add(change) }

// mark ends the mark of that number.
func (g *growth) mark(seq int) {
	next := g.spare
	for site, change := range g.changes {
		if change.Bytes > 0 && seq > g.warmup {
			before := g.rising[site]
			next[site] = Growth{Site: site, Marks: before.Marks + 1, Gained: before.Gained.Add(change)}
		}
	}
	clear(g.changes)
	clear(g.rising)
	g.rising, g.spare = next, g.rising
}
