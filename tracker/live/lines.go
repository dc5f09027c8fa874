package live

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// linesAnswer is the answer of /lines: the lines of code that hold most of the device's memory, and
// the sum of all others.
type linesAnswer struct {
	Time  time.Time    `json:"time"`
	Live  mem.Tally    `json:"live"`
	Lines []lineAnswer `json:"lines"`
	Rest  mem.Tally    `json:"rest"`
}

// lineAnswer is a line of code, and its call stacks that hold most.
type lineAnswer struct {
	Line string `json:"line"`
	mem.Tally
	Oldest *float64      `json:"oldest_seconds"` // the age of the oldest buffer; null if it is not known
	Stacks []stackAnswer `json:"stacks"`
	More   int           `json:"more_stacks,omitempty"`
}

type stackAnswer struct {
	mem.Tally
	Frames []string `json:"frames"` // innermost first
}

const (
	maxLines  = 30
	maxStacks = 5
)

// lineTotal is the memory of a line of code.
type lineTotal struct {
	line mem.Frame
	mem.Tally
	stacks []stackTotal
	since  time.Duration // time of its oldest allocation, since the snapshot's epoch
}

type stackTotal struct {
	stack mem.Stack
	mem.Tally
}

// linesOf sums up a snapshot by line of code.
func linesOf(s *snapshot.Snapshot) linesAnswer {
	t := tables.Of(&s.Tables)
	of := make(map[mem.Frame]*lineTotal)
	bySite := make([]*lineTotal, len(t.Sites))
	stacks := make(map[tables.StackID]mem.Tally)
	for i := range t.Sites {
		site := &t.Sites[i]
		if site.Live == 0 || site.Tensor.Memory.OnHost() {
			continue
		}
		line := t.Stacks.Site(site.Stack)
		h := of[line]
		if h == nil {
			h = &lineTotal{line: line, since: math.MaxInt64}
			of[line] = h
		}
		bySite[i] = h
		live := site.Tensor.Tally(site.Live)
		h.Tally = h.Tally.Add(live)
		stacks[site.Stack] = stacks[site.Stack].Add(live)
	}
	for id, sum := range stacks {
		h := of[t.Stacks.Site(id)]
		h.stacks = append(h.stacks, stackTotal{t.Stacks.Stack(id), sum})
	}
	for i := range t.Allocations {
		if h := bySite[t.Allocations[i].Site]; h != nil {
			h.since = min(h.since, t.Allocations[i].Since)
		}
	}
	return largest(s, of)
}

// largest returns the lines with the most memory.
func largest(s *snapshot.Snapshot, of map[mem.Frame]*lineTotal) linesAnswer {
	all := slices.SortedFunc(maps.Values(of), func(x, y *lineTotal) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Count, x.Count), tables.CompareFrames(x.line, y.line))
	})
	names := lines.NewNames(maps.Keys(of))
	out := linesAnswer{Time: s.Time, Live: s.Live, Lines: []lineAnswer{}, Rest: s.Live}
	for _, h := range all[:min(len(all), maxLines)] {
		out.Rest = out.Rest.Sub(h.Tally)
		out.Lines = append(out.Lines, h.write(names, s.Time.Sub(tables.Of(&s.Tables).Epoch)))
	}
	return out
}

func (h *lineTotal) write(names *lines.Names, now time.Duration) lineAnswer {
	out := lineAnswer{Line: names.Of(h.line), Tally: h.Tally, Stacks: []stackAnswer{}, More: max(0, len(h.stacks)-maxStacks)}
	if h.since < math.MaxInt64 {
		age := max(0, now-h.since).Seconds()
		out.Oldest = &age
	}
	slices.SortFunc(h.stacks, func(x, y stackTotal) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), slices.CompareFunc(x.stack, y.stack, tables.CompareFrames))
	})
	for _, x := range h.stacks[:min(len(h.stacks), maxStacks)] {
		frames := []string{}
		for _, f := range x.stack {
			frames = append(frames, f.String())
		}
		out.Stacks = append(out.Stacks, stackAnswer{x.Tally, frames})
	}
	return out
}
