package leaks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
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

// Growing returns the lines of code whose live bytes rise over the marks, steeper
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
func Growing(s *snapshot.Snapshot) []Growth {
	found, began := s.Tables.Growing, s.Tables.Warm
	freed, now := s.Tables.Lifetimes, s.Time.Sub(s.Tables.Epoch)
	lines := linesOf(s, filter{}, func(site mem.Frame, _ stackCount) bool { return found[site] != nil })
	growths := make([]Growth, 0, len(found))
	for site, its := range found {
		g := Growth{Site: site, Marks: its.Span(), Gained: its.Gain()}
		if l := lines[site]; l != nil {
			gained := l.gained(began, g.Gained.Count)
			if g.Gained.Count > 0 && freed[site].UsuallyFreed(now, gained) {
				continue
			}
			g.Callers = newCallers(gained, l.stacks, s.Tables.Stacks.Path)
		}
		growths = append(growths, g)
	}
	slices.SortFunc(growths, func(x, y Growth) int {
		return cmp.Or(cmp.Compare(y.PerMark(), x.PerMark()), x.Site.Compare(y.Site))
	})
	return growths
}

// PathShare is a path to a line of code, and its share of the buffers that were
// ever allocated there, from 0 to 1.
type PathShare struct {
	Path  mem.Path `json:"path"`
	Share float64  `json:"share"`
}

// String prints the path and the share: "main.decode <- warm, 3.1 %".
func (p PathShare) String() string { return fmt.Sprintf("%v, %.1f %%", p.Path, 100*p.Share) }

// Callers says how a line of code that holds suspicious memory is reached.
type Callers struct {
	// Path is what the call stacks of that memory have in common.
	Path mem.Path `json:"path"`
	// Others are the paths by which others allocate at the same line, each up to
	// where it leaves Path: at most four, those of more buffers first.
	Others []PathShare `json:"others"`
}

const maxOthers = 4

// newCallers finds the callers of buffers by the counts of all call stacks of their line.
func newCallers(buffers []tables.LiveBuffer, line map[tables.StackID]stackCount, resolve func(tables.StackID) mem.Path) Callers {
	theirs := make(map[tables.StackID]bool)
	var common mem.Path
	for _, b := range buffers {
		if !theirs[b.Stack] {
			theirs[b.Stack] = true
			p := resolve(b.Stack)
			if len(theirs) > 1 {
				p = pathCommon(common, p)
			}
			common = p
		}
	}
	var all int64
	others := make(map[string]PathShare)
	for id, n := range line {
		all += n.total
		if theirs[id] {
			continue
		}
		p := resolve(id)
		same := pathSameCalls(p, common)
		if same == len(common) {
			continue
		}
		p = p[:min(same+1, len(p))]
		key := pathCalls(p)
		if known, ok := others[key]; ok {
			p = pathCommon(known.Path, p)
		}
		others[key] = PathShare{p, others[key].Share + float64(n.total)}
	}
	c := Callers{Path: common, Others: slices.AppendSeq([]PathShare{}, maps.Values(others))}
	slices.SortFunc(c.Others, func(x, y PathShare) int {
		return cmp.Or(cmp.Compare(y.Share, x.Share), cmp.Compare(pathCalls(x.Path), pathCalls(y.Path)))
	})
	c.Others = c.Others[:min(len(c.Others), maxOthers)]
	for i := range c.Others {
		c.Others[i].Share /= float64(all)
	}
	return c
}

// String prints a line for the path and one for each of the others.
func (c Callers) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tpath: %v", c.Path)
	for _, other := range c.Others {
		fmt.Fprintf(&b, "\n\talso: %v", other)
	}
	return b.String()
}

// common shortens p to what it has in common with q.
func pathCommon(p mem.Path, q mem.Path) mem.Path {
	n := pathSameCalls(p, q)
	p = slices.Clone(p[:n])
	for i := range p {
		if p[i] != q[i] {
			p[i].Line = 0
		}
	}
	return p
}

// calls names the functions.
func pathCalls(p mem.Path) string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Function)
		b.WriteByte('\n')
	}
	return b.String()
}

// sameCalls returns how many functions both begin with.
func pathSameCalls(p mem.Path, q mem.Path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n].Function == q[n].Function {
		n++
	}
	return n
}
