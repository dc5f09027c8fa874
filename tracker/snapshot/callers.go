package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

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
