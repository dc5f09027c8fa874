package tracker

import (
	"sort"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// line is what a snapshot tells of a line of code.
type line struct {
	stacks map[callstack.ID]stackCount // that lead to it
	live   []held                      // oldest first
}

// stackCount is how many buffers a call stack allocated.
type stackCount struct{ live, total int64 }

// frees reports whether the call stack's buffers are freed as a rule: of those
// that it ever allocated, half at least.
func (c stackCount) frees() bool { return 2*c.live <= c.total }

// lines returns the lines of code. They have the live buffers that the filter keeps, of
// the call stacks that are wanted.
func (s *Snapshot) lines(filter leakFilter, wanted func(Frame, stackCount) bool) map[Frame]*line {
	lines := make(map[Frame]*line)
	add := func(id callstack.ID, live, total int64) {
		site := s.stacks.site(id)
		l := lines[site]
		if l == nil {
			l = &line{stacks: make(map[callstack.ID]stackCount)}
			lines[site] = l
		}
		n := l.stacks[id]
		l.stacks[id] = stackCount{n.live + live, n.total + total}
	}
	for _, e := range s.sites {
		add(e.stack, e.live, e.total)
	}
	for _, e := range s.retired {
		add(e.stack, 0, e.total.Count)
	}
	bySite := make([]*line, len(s.sites)) // nil is not wanted
	for i, e := range s.sites {
		site := s.stacks.site(e.stack)
		if l := lines[site]; wanted(site, l.stacks[e.stack]) {
			bySite[i] = l
		}
	}
	for _, e := range s.allocations {
		if l := bySite[e.site]; l != nil && (filter.all() || filter.keeps(s.allocation(e))) {
			site := s.sites[e.site]
			l.live = append(l.live, held{site.stack, e.since, e.seq, site.group.each})
		}
	}
	return lines
}

// gained returns the live buffers by which the line's number of them rose after that
// time: not those from before, nor the youngest, which are in use for a moment.
// Without a rise, it returns all since then.
func (l *line) gained(began time.Duration, rise int64) []held {
	since := l.live[sort.Search(len(l.live), func(i int) bool { return l.live[i].since > began }):]
	if rise <= 0 {
		return since
	}
	return since[:min(rise, int64(len(since)))]
}

// lifetimes returns a copy of what is known of each line's freed buffers, taken some
// hundred lines at a time.
func (t *MemTracker) lifetimes() map[Frame]*lifetimes {
	const atOnce = 256
	lines := make(map[Frame]*lifetimes)
	var some [atOnce]lifetimes
	for first := 0; ; first += atOnce {
		t.mu.Lock()
		freed := t.ledger.freed[min(first, len(t.ledger.freed)):]
		freed = freed[:min(atOnce, len(freed))]
		clear(some[:])
		for i, l := range freed {
			if l != nil {
				some[i] = *l
			}
		}
		t.mu.Unlock()
		if len(freed) == 0 {
			return lines
		}
		for i := range freed {
			if some[i].last != 0 {
				own := some[i]
				lines[t.stacks.frame(lineID(first+i))] = &own
			}
		}
	}
}
