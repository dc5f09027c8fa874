package leaks

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Suspect is a line of code with live buffers that look forgotten: they are far older than
// nearly all other buffers of the line were when they were freed.
type Suspect struct {
	Site      mem.Frame `json:"site"`
	Callers             // of the old buffers
	mem.Tally           // the old buffers

	// Oldest is the age of the oldest.
	Oldest time.Duration `json:"oldest_ns"`
	// Freed is how many buffers of this line were freed; Share of them, at least
	// 0.99, lived less than Usual.
	Freed int64         `json:"freed"`
	Share float64       `json:"share"`
	Usual time.Duration `json:"usual_ns"`
}

// String says what is suspect and why, and how the line is reached:
//
//	main.go:88 main.decode: 29 buffers, 29.0 MiB, up to 18 s old; 99 % of the 2,871 others from here lived less than 68 ms
//		path: main.decode <- handle <- serveHTTP
//		also: main.decode <- warm, 3.1 %
func (s Suspect) String() string {
	return fmt.Sprintf("%v: %v, up to %s old; %s of the %s others from here lived less than %s\n%v",
		s.Site, s.Tally, roughly(s.Oldest), percent(s.Share), grouped(s.Freed), roughly(s.Usual), s.Callers)
}

func newSuspect(site mem.Frame, old []tables.LiveBuffer, freed *tables.Lifetimes, now time.Duration, callers Callers) Suspect {
	s := Suspect{Site: site, Callers: callers, Oldest: now - old[0].Since, Freed: freed.Count()}
	s.Usual, s.Share = freed.Usual()
	for _, b := range old {
		s.Tally = s.Tally.Add(mem.Tally{Count: 1, Bytes: b.Bytes})
	}
	return s
}

// roughly prints a duration with two digits, rounded up: "68 ms", "1.1 s", "18 s".
func roughly(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}}
	unit := units[len(units)-1]
	for _, u := range units {
		if d >= u.size {
			unit = u
			break
		}
	}
	n := float64(d) / float64(unit.size)
	if n < 10 {
		n = math.Ceil(10*n) / 10
	}
	if n >= 10 {
		n = math.Ceil(n)
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + " " + unit.name
}

// percent prints a share, rounded down.
func percent(share float64) string {
	if share == 1 {
		return "all"
	}
	return fmt.Sprintf("%.0f %%", math.Floor(100*share+1e-9))
}

// grouped prints a number with commas: "2,871".
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// Suspects returns the lines of code with live buffers that look forgotten, more
// bytes first. A leak of one buffer in a hundred is found as soon as eight are old
// enough: within seconds in a busy server. A light snapshot has none, nor one of a source
// that does not know how long freed buffers lived.
//
// The source counts for each line at which ages its buffers were freed. A live buffer
// is a suspect if it is older than a second, and 16 times as old as 99 % of the
// freed ones became. Some buffers live long on purpose, so three more rules apply:
//
//   - The line has freed at least a hundred buffers, and the suspect's call stack at
//     least half of those that it allocated. Parameters are no suspects, even if the line
//     that allocates them also allocates buffers that are freed.
//   - There are at least eight suspects, and for each eight of them at most one freed buffer that
//     reached a sixteenth of their age.
//   - They were allocated one after the other: over a time at least as long as their age,
//     and a quarter of them in the second half of what the line has done since the first.
//     A pool that was filled at the start, a long request, or a program that hangs leave old
//     buffers too, but all from one time.
//
// The limits: Buffers that live long on purpose, are allocated again and again, and were
// never freed yet look like a leak, for example sessions of an hour in the first
// hour; options such as IgnoreFunction leave them out. A line that frees nothing looks like a cache
// (see Growing). A leak of fewer than eight buffers is not found, nor one that has stopped
// while the line went on. If one helper allocates both what lives a millisecond
// and what lives an hour, a leak of the former is found after hours: name the helper's
// package in tracker.Config.Libraries.
func Suspects(s *snapshot.Snapshot, opts ...Option) []Suspect {
	freed, now := s.Tables.Lifetimes, s.Time.Sub(s.Tables.Epoch)
	lines := linesOf(s, newFilter(opts), func(site mem.Frame, stack stackCount) bool {
		return freed[site] != nil && stack.frees()
	})
	var found []Suspect
	for site, line := range lines {
		if its := freed[site]; its != nil {
			if old := its.Suspects(now, line.live); len(old) > 0 {
				found = append(found, newSuspect(site, old, its, now, newCallers(old, line.stacks, s.Tables.Stacks.Path)))
			}
		}
	}
	slices.SortFunc(found, func(x, y Suspect) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), x.Site.Compare(y.Site))
	})
	return found
}

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

// linesOf returns the lines of code. They have the live buffers that the filter keeps, of
// the call stacks that are wanted.
func linesOf(s *snapshot.Snapshot, filter filter, wanted func(mem.Frame, stackCount) bool) map[mem.Frame]*line {
	lines := make(map[mem.Frame]*line)
	add := func(id tables.StackID, live, total int64) {
		site := s.Tables.Stacks.Site(id)
		l := lines[site]
		if l == nil {
			l = &line{stacks: make(map[tables.StackID]stackCount)}
			lines[site] = l
		}
		n := l.stacks[id]
		l.stacks[id] = stackCount{n.live + live, n.total + total}
	}
	for _, e := range s.Tables.Sites {
		add(e.Stack, e.Live, e.Total)
	}
	for _, e := range s.Tables.Retired {
		add(e.Stack, 0, e.Total.Count)
	}
	bySite := make([]*line, len(s.Tables.Sites)) // nil is not wanted
	for i, e := range s.Tables.Sites {
		site := s.Tables.Stacks.Site(e.Stack)
		if l := lines[site]; wanted(site, l.stacks[e.Stack]) {
			bySite[i] = l
		}
	}
	for _, e := range s.Tables.Allocations {
		if l := bySite[e.Site]; l != nil && (filter.all() || filter.keeps(&s.Tables, &e)) {
			site := s.Tables.Sites[e.Site]
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
