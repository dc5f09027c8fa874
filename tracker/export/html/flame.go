package html

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// node is a frame of the flame graph with everything that it called. The page numbers frames so
// that callers come before what they call.
type node struct {
	Name  string   `json:"name"`
	Place string   `json:"place,omitempty"` // file and line
	Ever  [2]int64 `json:"ever"`            // bytes and buffers
	Calls []*node  `json:"calls,omitempty"` // larger shares first

	by     *node
	place  int       // among all
	ever   mem.Tally // that ended here, and then all below too
	share  float64   // the frame's largest share of the whole at any moment
	weight float64   // as share; at most moments the share is taken of the live bytes at the peak
	number int       // the frame's number on the page; -1 if it is left out
}

// least is the share of the whole below which a frame is left out.
const least = 0.001

// flame is the call stacks laid over each other, outermost frames first.
type flame struct {
	root  *node
	nodes []*node // all frames, each after its callers
	leaf  []*node // where each row ends; nil of one that is not in the device's memory
	calls map[call]*node
	text  func(string) string
}

type call struct {
	by    *node
	frame mem.Frame
}

// newFlame lays the rows' stacks over each other, and cuts off what is small at all moments.
func newFlame(rows []export.Row, list []moment, text func(string) string, frames int) *flame {
	f := &flame{root: &node{Name: "all"}, calls: make(map[call]*node), text: text, leaf: make([]*node, len(rows))}
	f.nodes = []*node{f.root}
	for i := range rows {
		if !onHost(&rows[i]) {
			f.leaf[i] = f.add(&rows[i])
			f.leaf[i].ever = f.leaf[i].ever.Add(rows[i].Total)
		}
	}
	f.measure(list)
	f.root.cut(frames)
	f.number()
	return f
}

// add returns where a row's stack ends.
func (f *flame) add(r *export.Row) *node {
	stack := r.Stack
	if len(stack) == 0 {
		stack = mem.Stack{{Function: "unknown"}}
	}
	n := f.root
	for _, frame := range slices.Backward(stack) {
		if strings.HasPrefix(frame.Function, "runtime.") {
			continue
		}
		c := f.calls[call{n, frame}]
		if c == nil {
			c = &node{Name: f.text(path.Base(frame.Function)), Place: f.text(place(frame)), by: n, place: len(f.nodes)}
			f.calls[call{n, frame}] = c
			n.Calls = append(n.Calls, c)
			f.nodes = append(f.nodes, c)
		}
		n = c
	}
	return n
}

// place returns a frame's file and line, if it has one.
func place(f mem.Frame) string {
	if f.File == "" {
		return f.Function
	}
	return f.String()
}

// measure sets the most that each frame ever had and its largest share, and sorts the calls by it.
func (f *flame) measure(list []moment) {
	sums := make([]int64, len(f.nodes))
	for _, n := range slices.Backward(f.nodes) { // what is called comes before what calls it
		n.Ever = [2]int64{int64(n.ever.Bytes), n.ever.Count}
		sums[n.place] = n.Ever[0]
		if n.by != nil {
			n.by.ever = n.by.ever.Add(n.ever)
		}
	}
	f.shares(sums, sums[0])
	peak := int64(slices.MaxFunc(list, func(x, y moment) int { return cmp.Compare(x.Live.Bytes, y.Live.Bytes) }).Live.Bytes)
	for _, m := range list {
		clear(sums)
		for row, t := range m.live {
			if leaf := f.leaf[row]; leaf != nil {
				sums[leaf.place] += int64(t.Bytes)
			}
		}
		for _, n := range slices.Backward(f.nodes[1:]) {
			sums[n.by.place] += sums[n.place]
		}
		if len(m.names) > 0 {
			f.shares(sums, sums[0])
		} else {
			f.shares(sums, peak)
		}
	}
	for _, n := range f.nodes {
		slices.SortFunc(n.Calls, func(x, y *node) int {
			return cmp.Or(cmp.Compare(y.share, x.share), cmp.Compare(x.Place, y.Place))
		})
	}
}

// shares raises the frames' shares to their share of the sums, and their weights to their share of
// whole.
func (f *flame) shares(sums []int64, whole int64) {
	if sums[0] <= 0 {
		return
	}
	for _, n := range f.nodes {
		n.share = max(n.share, float64(sums[n.place])/float64(sums[0]))
		n.weight = max(n.weight, float64(sums[n.place])/float64(max(whole, sums[0])))
	}
}

// cut removes the frames that are small at every moment. If more than the given number are left, it
// also removes those of least weight. A frame is never larger than its caller, so all below it goes
// with it.
func (n *node) cut(frames int) {
	n.drop(func(c *node) bool { return c.share < least })
	if weights := n.weights(nil); len(weights) > frames {
		slices.SortFunc(weights, func(x, y float64) int { return cmp.Compare(y, x) })
		atLeast := nextAbove(weights, weights[frames]) // frames of equal weight all go
		n.drop(func(c *node) bool { return c.weight < atLeast })
	}
}

func (n *node) weights(list []float64) []float64 {
	for _, c := range n.Calls {
		list = c.weights(append(list, c.weight))
	}
	return list
}

// nextAbove returns the smallest of the weights, sorted, that is above one.
func nextAbove(weights []float64, weight float64) float64 {
	for _, w := range slices.Backward(weights) {
		if w > weight {
			return w
		}
	}
	return 2 // none is
}

func (n *node) drop(small func(*node) bool) {
	n.Calls = slices.DeleteFunc(n.Calls, small)
	for _, c := range n.Calls {
		c.drop(small)
	}
}

// number numbers the frames that are left, as the page does.
func (f *flame) number() {
	for _, n := range f.nodes {
		n.number = -1
	}
	next := 0
	var walk func(*node)
	walk = func(n *node) {
		n.number = next
		next++
		for _, c := range n.Calls {
			walk(c)
		}
	}
	walk(f.root)
}

// of returns the number of the innermost frame shown for a row; -1 if the row is not in the
// device's memory.
func (f *flame) of(row int) int {
	n := f.leaf[row]
	if n == nil {
		return -1
	}
	for n.number < 0 {
		n = n.by
	}
	return n.number
}
