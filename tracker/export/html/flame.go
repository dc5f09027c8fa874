package html

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// node is a frame of the flame graph with all that it called.
type node struct {
	Name  string   `json:"name"`
	Place string   `json:"place,omitempty"` // file and line
	Bytes [3]int64 `json:"bytes"`           // live, at the peak, ever
	Count [3]int64 `json:"count"`
	Calls []*node  `json:"calls,omitempty"` // more live bytes first

	share float64 // of the whole, in the measure where it is largest
}

// least is the share of the whole below which a frame is left out.
const least = 0.001

// newFlame lays the call stacks over each other, outermost frames first.
func newFlame(rows []export.Row, text func(string) string) *node {
	root := &node{Name: "all"}
	b := flameBuilder{calls: make(map[call]*node), text: text}
	for i := range rows {
		b.add(root, &rows[i])
	}
	root.measure(root.Bytes)
	return root
}

// flameBuilder finds the call of a frame in a map, so that its time grows with the frames and not
// with the calls of each.
type flameBuilder struct {
	calls map[call]*node
	text  func(string) string
}

type call struct {
	by    *node
	frame mem.Frame
}

func (b *flameBuilder) add(n *node, r *export.Row) {
	n.count(r)
	stack := r.Stack
	if len(stack) == 0 {
		stack = mem.Stack{{Function: "unknown"}}
	}
	for _, f := range slices.Backward(stack) {
		if strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		c := b.calls[call{n, f}]
		if c == nil {
			c = &node{Name: b.text(path.Base(f.Function)), Place: b.text(place(f))}
			b.calls[call{n, f}] = c
			n.Calls = append(n.Calls, c)
		}
		n = c
		n.count(r)
	}
}

// place returns a frame's file and line, if it has one.
func place(f mem.Frame) string {
	if f.File == "" {
		return f.Function
	}
	return f.String()
}

func (n *node) count(r *export.Row) {
	for i, t := range []mem.Tally{r.Live, r.Peak, r.Total} {
		n.Bytes[i] += int64(t.Bytes)
		n.Count[i] += t.Count
	}
}

// measure sets the shares, and orders the calls.
func (n *node) measure(all [3]int64) {
	for i, b := range n.Bytes {
		if all[i] > 0 {
			n.share = max(n.share, float64(b)/float64(all[i]))
		}
	}
	slices.SortFunc(n.Calls, func(x, y *node) int {
		return cmp.Or(cmp.Compare(y.Bytes[0], x.Bytes[0]), cmp.Compare(y.Bytes[1], x.Bytes[1]), cmp.Compare(x.Place, y.Place))
	})
	for _, c := range n.Calls {
		c.measure(all)
	}
}

// cut leaves out frames that are small in every measure, so that no more than so
// many are left. What a frame calls is never larger, so it goes with it.
func (n *node) cut(frames int) {
	atLeast := least
	if shares := n.shares(nil); len(shares) > frames {
		slices.SortFunc(shares, func(x, y float64) int { return cmp.Compare(y, x) })
		atLeast = max(least, nextAbove(shares, shares[frames])) // of equal ones all go
	}
	n.drop(atLeast)
}

func (n *node) shares(list []float64) []float64 {
	for _, c := range n.Calls {
		list = c.shares(append(list, c.share))
	}
	return list
}

// nextAbove returns the smallest of the shares, sorted, that is above one.
func nextAbove(shares []float64, share float64) float64 {
	for _, s := range slices.Backward(shares) {
		if s > share {
			return s
		}
	}
	return 2 // none is
}

func (n *node) drop(atLeast float64) {
	n.Calls = slices.DeleteFunc(n.Calls, func(c *node) bool { return c.share < atLeast })
	for _, c := range n.Calls {
		c.drop(atLeast)
	}
}
