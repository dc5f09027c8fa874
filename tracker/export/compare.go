package export

import (
	"cmp"
	"iter"
	"path"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// By is what memory is summed up by: one of Bys, or by "site" if it is none of them.
type By string

// Bys returns the properties to sum up by: "site", the line of the user's code; "function"; "path", the calls
// that led to that line; "shape", with the dtype; "kind"; "section"; "device"; "stream"; and "memory", the
// kind of memory. Of the folders of a site only those count that tell two lines of one process apart, so that
// runs of two machines compare.
func Bys() []By {
	return []By{"site", "function", "path", "shape", "kind", "section", "device", "stream", "memory"}
}

// Of is which of a row's tallies counts: one of Ofs, or "live" if it is none of them.
type Of string

// Ofs returns the tallies: "live", "peak" and "total".
func Ofs() []Of { return []Of{"live", "peak", "total"} }

// Line is what one key holds, before and after, in all processes and in each.
type Line struct {
	Key           string
	Before, After mem.Tally   // of all processes
	Ranks         []mem.Tally // the change in each process, in the order given
}

// Change returns After less Before.
func (l Line) Change() mem.Tally { return l.After.Sub(l.Before) }

// Compare sums up two runs of any number of processes each, and compares each
// process with the one in the same place, or with nothing if that is nil or not
// there. Lines that changed come first, growth before shrinkage, the
// larger first; then the others. The second result is the sum of all lines.
func Compare(before, after []*Usage, by By, of Of) ([]Line, Line) {
	c := comparison{ranks: max(len(before), len(after)), index: make(map[string]int), names: new(lines.Names)}
	if by == "site" || !slices.Contains(Bys(), by) {
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
	case "shape":
		if r.Shape == "" {
			return "unknown"
		}
		return r.Shape + " " + r.DType
	case "kind":
		return cmp.Or(r.Kind, "unknown")
	case "section":
		return cmp.Or(r.Section, "no section")
	case "device":
		return cmp.Or(r.Device, "unknown")
	case "memory":
		return cmp.Or(r.Memory, "unknown")
	case "stream":
		return cmp.Or(r.Stream, "unknown")
	case "function":
		if r.Site.Function == "" {
			return "unknown"
		}
		return path.Base(r.Site.Function)
	case "path":
		return r.Stack[max(0, slices.Index(r.Stack, r.Site)):].Path().String()
	default:
		return c.names.Of(r.Site)
	}
}

func (r *Row) tally(of Of) mem.Tally {
	switch of {
	case "peak":
		return r.Peak
	case "total":
		return r.Total
	default:
		return r.Live
	}
}
