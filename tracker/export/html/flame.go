package html

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// node is a frame of the flame graph with all that it called.
type node struct {
	Name  string   `json:"name"`
	Place string   `json:"place,omitempty"` // file and line
	Bytes [3]int64 `json:"bytes"`           // live, at the peak, ever
	Count [3]int64 `json:"count"`
	Calls []*node  `json:"calls,omitempty"` // more live bytes first

	frame tracker.Frame
}

// least is the part of the whole below which a frame is left out.
const least = 1000

// newFlame lays the call stacks over each other, outermost frames first.
func newFlame(u *export.Usage) *node {
	root := &node{Name: "all"}
	for i := range u.Rows {
		root.add(&u.Rows[i])
	}
	root.prune(root.Bytes)
	return root
}

func (n *node) add(r *export.Row) {
	n.count(r)
	for _, f := range slices.Backward(r.Stack) {
		if strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		n = n.call(f)
		n.count(r)
	}
}

func (n *node) count(r *export.Row) {
	for i, t := range []tracker.Tally{r.Live, r.Peak, r.Total} {
		n.Bytes[i] += int64(t.Bytes)
		n.Count[i] += t.Count
	}
}

func (n *node) call(f tracker.Frame) *node {
	for _, c := range n.Calls {
		if c.frame == f {
			return c
		}
	}
	c := &node{frame: f, Name: path.Base(f.Function), Place: f.String()}
	n.Calls = append(n.Calls, c)
	return c
}

// prune leaves out what is small in every measure, and orders the rest.
func (n *node) prune(all [3]int64) {
	n.Calls = slices.DeleteFunc(n.Calls, func(c *node) bool {
		for i, b := range c.Bytes {
			if b > 0 && b >= all[i]/least {
				return false
			}
		}
		return true
	})
	slices.SortFunc(n.Calls, func(x, y *node) int {
		return cmp.Or(cmp.Compare(y.Bytes[0], x.Bytes[0]), cmp.Compare(y.Bytes[1], x.Bytes[1]), cmp.Compare(x.Place, y.Place))
	})
	for _, c := range n.Calls {
		c.prune(all)
	}
}
