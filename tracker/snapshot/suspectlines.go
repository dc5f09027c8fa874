package snapshot

import (
	"sort"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// line is what a snapshot tells of a line of code.
type line struct {
	stacks map[tables.StackID]stackCount // that lead to it
	live   []tables.LiveBuffer           // oldest first
}

// stackCount is how many buffers a call stack allocated.
type stackCount struct{ live, total int64 }

// frees reports whether the call stack's buffers are freed as a rule: of those
// that it ever allocated, half at least.
func (c stackCount) frees() bool { return 2*c.live <= c.total }

// lines returns the lines of code. They have the live buffers that the filter keeps, of
// the call stacks that are wanted.
func (s *Snapshot) lines(filter leakFilter, wanted func(mem.Frame, stackCount) bool) map[mem.Frame]*line {
	lines := make(map[mem.Frame]*line)
	add := func(id tables.StackID, live, total int64) {
		site := s.tables.Stacks.Site(id)
		l := lines[site]
		if l == nil {
			l = &line{stacks: make(map[tables.StackID]stackCount)}
			lines[site] = l
		}
		n := l.stacks[id]
		l.stacks[id] = stackCount{n.live + live, n.total + total}
	}
	for _, e := range s.tables.Sites {
		add(e.Stack, e.Live, e.Total)
	}
	for _, e := range s.tables.Retired {
		add(e.Stack, 0, e.Total.Count)
	}
	bySite := make([]*line, len(s.tables.Sites)) // nil is not wanted
	for i, e := range s.tables.Sites {
		site := s.tables.Stacks.Site(e.Stack)
		if l := lines[site]; wanted(site, l.stacks[e.Stack]) {
			bySite[i] = l
		}
	}
	for _, e := range s.tables.Allocations {
		if l := bySite[e.Site]; l != nil && (filter.all() || filter.keeps(s.allocation(e))) {
			site := s.tables.Sites[e.Site]
			l.live = append(l.live, tables.LiveBuffer{Stack: site.Stack, Since: e.Since, Seq: e.Seq, Bytes: site.Tensor.Each})
		}
	}
	return lines
}

// gained returns the live buffers by which the line's number of them rose after that
// time: not those from before, nor the youngest, which are in use for a moment.
// Without a rise, it returns all since then.
func (l *line) gained(began time.Duration, rise int64) []tables.LiveBuffer {
	since := l.live[sort.Search(len(l.live), func(i int) bool { return l.live[i].Since > began }):]
	if rise <= 0 {
		return since
	}
	return since[:min(rise, int64(len(since)))]
}
