package export

import (
	"cmp"
	"iter"
	"path"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// By is what memory is summed up by.
type By string

// The properties to sum up by.
const (
	// BySite is by the line of the user's code. Of its folders only those count that tell
	// two lines of one process apart, so that runs of two machines compare.
	BySite     By = "site"
	ByFunction By = "function"
	ByPath     By = "path"  // the calls that led to that line
	ByShape    By = "shape" // with the dtype
	ByKind     By = "kind"
	BySection  By = "section"
	ByDevice   By = "device"
	ByStream   By = "stream"
	ByMemory   By = "memory" // the kind of memory: device, managed, pinned
)

// Bys returns every By.
func Bys() []By {
	return []By{BySite, ByFunction, ByPath, ByShape, ByKind, BySection, ByDevice, ByStream, ByMemory}
}

// Of is which of a row's tallies counts.
type Of string

// The tallies.
const (
	OfLive  Of = "live"
	OfPeak  Of = "peak"
	OfTotal Of = "total"
)

// Ofs returns every Of.
func Ofs() []Of { return []Of{OfLive, OfPeak, OfTotal} }

// Line is what one key holds, before and after, in all processes and in each.
type Line struct {
	Key           string
	Before, After mem.Tally   // of all processes
	Ranks         []mem.Tally // the change in each process, in the order given
}

// Change returns After less Before.
func (l Line) Change() mem.Tally { return l.After.Sub(l.Before) }

// Worst returns the process that grew most and by how much; -1 if there is none.
func (l Line) Worst() (rank int, change mem.Tally) {
	rank = -1
	for i, t := range l.Ranks {
		if rank < 0 || t.Bytes > change.Bytes {
			rank, change = i, t
		}
	}
	return rank, change
}

// Spread returns the difference between the processes that grew most and least.
func (l Line) Spread() alloc.Bytes {
	if len(l.Ranks) == 0 {
		return 0
	}
	least, most := l.Ranks[0].Bytes, l.Ranks[0].Bytes
	for _, t := range l.Ranks[1:] {
		least, most = min(least, t.Bytes), max(most, t.Bytes)
	}
	return most - least
}

// Compare sums up two runs of any number of processes each, and compares each
// process with the one in the same place, or with nothing if that is nil or not
// there: see Pair. Lines that changed come first, growth before shrinkage, the
// larger first; then the others. The second result is the sum of all lines.
func Compare(before, after []*Usage, by By, of Of) ([]Line, Line) {
	c := comparison{ranks: max(len(before), len(after)), index: make(map[string]int), names: new(lines.Names)}
	if by == BySite {
		c.names = namesOf(before, after)
	}
	c.sum = Line{Key: "all", Ranks: make([]mem.Tally, c.ranks)}
	for rank, u := range before {
		for r := range u.rows {
			c.add(c.key(r, by), rank, r.tally(of), mem.Tally{})
		}
	}
	for rank, u := range after {
		for r := range u.rows {
			c.add(c.key(r, by), rank, mem.Tally{}, r.tally(of))
		}
	}
	slices.SortFunc(c.lines, compareLines)
	return c.lines, c.sum
}

// namesOf names the lines of code of all processes.
func namesOf(runs ...[]*Usage) *lines.Names {
	var processes []iter.Seq[mem.Frame]
	for _, run := range runs {
		for _, u := range run {
			processes = append(processes, u.sites)
		}
	}
	return lines.NewNames(processes...)
}

func compareLines(x, y Line) int {
	if grewX, grewY := x.Change().Bytes > 0, y.Change().Bytes > 0; grewX != grewY {
		if grewX {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(abs(y.Change().Bytes), abs(x.Change().Bytes)),
		cmp.Compare(y.After.Bytes, x.After.Bytes),
		cmp.Compare(x.Key, y.Key))
}

func abs(b alloc.Bytes) alloc.Bytes { return max(b, -b) }

type comparison struct {
	ranks int
	names *lines.Names
	lines []Line
	index map[string]int
	sum   Line
}

func (c *comparison) add(key string, rank int, before, after mem.Tally) {
	if before.IsZero() && after.IsZero() {
		return
	}
	i, ok := c.index[key]
	if !ok {
		i = len(c.lines)
		c.index[key] = i
		c.lines = append(c.lines, Line{Key: key, Ranks: make([]mem.Tally, c.ranks)})
	}
	for _, l := range []*Line{&c.lines[i], &c.sum} {
		l.Before = l.Before.Add(before)
		l.After = l.After.Add(after)
		l.Ranks[rank] = l.Ranks[rank].Add(after.Sub(before))
	}
}

func (c *comparison) key(r *Row, by By) string {
	switch by {
	case ByShape:
		if r.Shape == "" {
			return "unknown"
		}
		return r.Shape + " " + r.DType
	case ByKind:
		return cmp.Or(r.Kind, "unknown")
	case BySection:
		return cmp.Or(r.Section, "no section")
	case ByDevice:
		return cmp.Or(r.Device, "unknown")
	case ByMemory:
		return cmp.Or(r.Memory, "unknown")
	case ByStream:
		return cmp.Or(r.Stream, "unknown")
	case ByFunction:
		if r.Site.Function == "" {
			return "unknown"
		}
		return path.Base(r.Site.Function)
	case ByPath:
		return r.Stack[max(0, slices.Index(r.Stack, r.Site)):].Path().String()
	default:
		return c.names.Of(r.Site)
	}
}

func (r *Row) tally(of Of) mem.Tally {
	switch of {
	case OfPeak:
		return r.Peak
	case OfTotal:
		return r.Total
	default:
		return r.Live
	}
}
