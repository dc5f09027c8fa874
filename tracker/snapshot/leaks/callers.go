package leaks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// callers says how a line of code that holds suspicious memory is reached.
type callers struct {
	path   mem.Path // common part of the call stacks of that memory
	others []other  // the paths of other buffers allocated at the same line, each cut where it leaves path; those with more buffers first
}

// other is a path to a line of code, with its share (0 to 1) of the buffers ever allocated at that
// line.
type other struct {
	path  mem.Path
	share float64
}

// String prints the path and the share: "main.decode <- warm, 3.1 %".
func (o other) String() string { return fmt.Sprintf("%v, %.1f %%", o.path, 100*o.share) }

const maxOthers = 4

// callersOf finds the callers of some of a line's buffers.
func callersOf(s *snapshot.Snapshot, buffers []survival.Buffer, l *line) callers {
	t, stacks := tables.Of(&s.Tables), make([]tables.StackID, len(buffers))
	for i, b := range buffers {
		stacks[i] = stackOf(t, b)
	}
	return newCallers(stacks, l.stacks, t.Stacks.Path)
}

// newCallers finds the callers of the buffers of some stacks by the counts of all stacks of their line.
func newCallers(stacks []tables.StackID, line map[tables.StackID]stackCount, resolve func(tables.StackID) mem.Path) callers {
	theirs := make(map[tables.StackID]bool)
	var common mem.Path
	for _, stack := range stacks {
		if !theirs[stack] {
			theirs[stack] = true
			p := resolve(stack)
			if len(theirs) > 1 {
				p = pathCommon(common, p)
			}
			common = p
		}
	}
	var all int64
	others := make(map[string]other)
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
			p = pathCommon(known.path, p)
		}
		others[key] = other{p, others[key].share + float64(n.total)}
	}
	c := callers{common, slices.Collect(maps.Values(others))}
	slices.SortFunc(c.others, func(x, y other) int {
		return cmp.Or(cmp.Compare(y.share, x.share), cmp.Compare(pathCalls(x.path), pathCalls(y.path)))
	})
	c.others = c.others[:min(len(c.others), maxOthers)]
	for i := range c.others {
		c.others[i].share /= float64(all)
	}
	return c
}

// texts returns the others as text.
func (c callers) texts() []string {
	texts := make([]string, len(c.others))
	for i, o := range c.others {
		texts[i] = o.String()
	}
	return texts
}

// way prints a line for the path and one for each of the others.
func way(path mem.Path, others []string) string {
	lines := "\tpath: " + text.Line(path.String())
	for _, other := range others {
		lines += "\n\talso: " + text.Line(other)
	}
	return lines
}

// pathCommon returns the beginning that p and q share, with line 0 where only the lines differ.
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

// pathCalls names the functions.
func pathCalls(p mem.Path) string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Function)
		b.WriteByte('\n')
	}
	return b.String()
}

// pathSameCalls returns how many functions both begin with.
func pathSameCalls(p mem.Path, q mem.Path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n].Function == q[n].Function {
		n++
	}
	return n
}
