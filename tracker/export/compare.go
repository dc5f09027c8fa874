package export

import (
	"cmp"
	"iter"
	"slices"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Bys returns the properties by which a usage can be summed up: "line", the line of the user's
// code; "function"; "path", the calls that led to that line; "shape", with the dtype; "kind";
// "section"; "device"; "stream"; "memory", the type of memory; "label", which only rows of
// FromBuffers have; and "size", the size of each buffer by powers of two. A line keeps only as many
// of its folders as are needed to tell two lines of one process apart, so that runs on two machines
// can be compared.
func Bys() []string {
	return []string{"line", "function", "path", "shape", "kind", "section", "device", "stream", "memory", "label", "size"}
}

// Line is the memory of one key, before and after, in all processes and in each.
type Line struct {
	Key    string      `json:"key"`
	Before mem.Tally   `json:"before"` // in all processes
	After  mem.Tally   `json:"after"`
	Ranks  []mem.Tally `json:"ranks"` // the change in each process, in the order given
}

// Change returns After less Before.
func (l Line) Change() mem.Tally { return l.After.Sub(l.Before) }

// Compare sums up two runs of any number of processes each, by one of Bys, and counts the tally of that name:
// "live", "peak" or "total". Any other word means "line" and "live". It compares each process with the one
// at the same index, or with an empty one if that is nil or missing. Lines that changed come first,
// growth before shrinkage and larger changes first; then the others. Lines of sizes are sorted by
// size, the largest first. The second result is the sum of all lines.
func Compare(before, after []*Usage, by, of string) ([]Line, Line) {
	before, after = summaries(before, by, of), summaries(after, by, of)
	c := comparison{ranks: max(len(before), len(after)), lineOf: make(map[unique.Handle[rowKey]]int), index: make(map[string]int), names: namesOf(before, after)}
	c.sum = Line{Key: "all", Ranks: make([]mem.Tally, c.ranks)}
	for rank, u := range before {
		for i, sum := range u.sums {
			c.add(u.keys[i], rank, sum, mem.Tally{})
		}
	}
	for rank, u := range after {
		for i, sum := range u.sums {
			c.add(u.keys[i], rank, mem.Tally{}, sum)
		}
	}
	if by == "size" {
		slices.SortFunc(c.lines, func(x, y Line) int { return cmp.Compare(sizeOf(y.Key), sizeOf(x.Key)) })
	} else {
		slices.SortFunc(c.lines, compareLines)
	}
	return c.lines, c.sum
}

// namesOf names the lines of code of all processes.
func namesOf(runs ...[]*Usage) *lines.Names {
	var processes []iter.Seq[mem.Frame]
	named := make(map[*unique.Handle[rowKey]]bool) // of the keys that several processes share, the first
	for _, run := range runs {
		for _, u := range run {
			if len(u.keys) == 0 || named[&u.keys[0]] {
				continue
			}
			named[&u.keys[0]] = true
			processes = append(processes, func(yield func(mem.Frame) bool) {
				for _, handle := range u.keys {
					if key := handle.Value(); key.isSite && !yield(key.site) {
						return
					}
				}
			})
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
	ranks  int
	names  *lines.Names
	lines  []Line
	lineOf map[unique.Handle[rowKey]]int
	index  map[string]int // by name: several keys may have one name
	sum    Line
}

func (c *comparison) add(key unique.Handle[rowKey], rank int, before, after mem.Tally) {
	i, ok := c.lineOf[key]
	if !ok {
		name := key.Value().name
		if key.Value().isSite {
			name = c.names.Of(key.Value().site)
		}
		if i, ok = c.index[name]; !ok {
			i = len(c.lines)
			c.index[name] = i
			c.lines = append(c.lines, Line{Key: name, Ranks: make([]mem.Tally, c.ranks)})
		}
		c.lineOf[key] = i
	}
	for _, l := range []*Line{&c.lines[i], &c.sum} {
		l.Before = l.Before.Add(before)
		l.After = l.After.Add(after)
		l.Ranks[rank] = l.Ranks[rank].Add(after.Sub(before))
	}
}
