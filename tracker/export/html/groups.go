package html

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// row is a line of the table of a mark's changes: buffers of one kind, shape and dtype.
type row struct {
	Kind   string      `json:"kind"`
	Memory string      `json:"memory,omitempty"` // if it is not plain device memory
	Shape  string      `json:"shape"`
	DType  string      `json:"dtype"`
	Count  int64       `json:"count"` // these may be negative
	Bytes  alloc.Bytes `json:"bytes"`
	Sites  []string    `json:"call_sites"` // that allocated them, those with most bytes first
	More   int         `json:"more,omitempty"`
}

// group is one line of the table of live buffers: the buffers with one line of code, kind, shape
// and dtype.
type group struct {
	Kind   string `json:"kind,omitempty"`
	Memory string `json:"memory,omitempty"` // if it is not plain device memory
	Shape  string `json:"shape,omitempty"`
	DType  string `json:"dtype,omitempty"`
	Site   string `json:"call_site"`
	Host   bool   `json:"host,omitempty"` // it counts in no total
}

// grouped puts rows into groups: the indices of each group's rows.
func grouped(rows []export.Row) (all [][]int) {
	type key struct {
		site                       mem.Frame
		kind, shape, dtype, memory string
	}
	index := make(tables.Numbers[key])
	for i := range rows {
		r := &rows[i]
		g, isNew := index.Of(key{r.CallSite, r.Kind, r.Shape, r.DType, r.Memory})
		if isNew {
			all = append(all, nil)
		}
		all[g] = append(all[g], i)
	}
	return all
}

// largest returns the groups that rank highest at some moment. The groups of the moment at which
// the page opens come first, as many as a table shows.
func largest(all [][]int, list []moment, opens, most int) [][]int {
	rank, bytes := slices.Repeat([]int{math.MaxInt}, len(all)), make([]alloc.Bytes, len(all))
	var there []int
	sums := make([]alloc.Bytes, len(all))
	for i := range list {
		there = there[:0]
		for g, members := range all {
			if sums[g] = list[i].bytes(members); sums[g] > 0 {
				there = append(there, g)
				bytes[g] = max(bytes[g], sums[g])
			}
		}
		slices.SortFunc(there, func(x, y int) int { return cmp.Compare(sums[y], sums[x]) })
		for place, g := range there {
			if i == opens && place < maxRows {
				place = 0
			}
			rank[g] = min(rank[g], place)
		}
	}
	order := make([]int, 0, len(all))
	for g := range all {
		if rank[g] < math.MaxInt {
			order = append(order, g)
		}
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Or(cmp.Compare(rank[x], rank[y]), cmp.Compare(bytes[y], bytes[x])) })
	out := make([][]int, 0, most)
	for _, g := range order[:min(len(order), most)] {
		out = append(out, all[g])
	}
	return out
}

// maxRows is how many lines the page's script shows of the table.
const maxRows = 300

// bytes sums up rows.
func (x *moment) bytes(rows []int) (sum alloc.Bytes) {
	for _, row := range rows {
		if row < len(x.live) {
			sum += x.live[row].Bytes
		}
	}
	return sum
}

// groupsOf writes the table's lines, and says of each row which it is in; -1 of one that is left out.
func (w *writing) groupsOf(rows []export.Row, list []moment, opens int) (out []group, of []int) {
	of = slices.Repeat([]int{-1}, len(rows))
	out = []group{}
	for g, members := range largest(grouped(rows), list, opens, w.detail.groups) {
		r := &rows[members[0]]
		out = append(out, group{Kind: w.text(r.Kind), Memory: notPlain(r.Memory), Shape: w.text(r.Shape), DType: r.DType, Site: w.line(r.CallSite), Host: onHost(r)})
		for _, row := range members {
			of[row] = g
		}
	}
	return out, of
}

// onHost reports whether a row is in host memory, which counts in no total.
func onHost(r *export.Row) bool { return labels.OnHost(r.Memory) }

// notPlain returns the name of a type of memory, "" of plain device memory and of an unknown one.
func notPlain(memory string) string {
	if memory == alloc.DeviceMemory.String() || memory == alloc.UnknownMemory.String() {
		return ""
	}
	return memory
}

const maxSites = 4 // lines of code of a row

func (w *writing) sites(frames []mem.Frame) (names []string, more int) {
	names = []string{}
	for _, f := range frames[:min(len(frames), maxSites)] {
		names = append(names, w.line(f))
	}
	return names, max(0, len(frames)-maxSites)
}

// mark is a mark with its table.
type mark struct {
	Seq      int         `json:"seq"`
	Time     string      `json:"time"`
	Site     string      `json:"call_site"`
	Live     alloc.Bytes `json:"live"`
	Reserved alloc.Bytes `json:"reserved"`
	Change   alloc.Bytes `json:"change"`
	Changes  int         `json:"changes"` // number of groups that changed; Rows has the largest
	Rows     []row       `json:"rows"`
}

// mark shows the changes with the most bytes, in the delta's order.
func (w *writing) mark(m *snapshot.Mark, rows int) mark {
	out := mark{
		Seq: m.Seq, Time: m.Time.Format("15:04:05.000"), Site: w.line(m.CallSite),
		Live: m.Live.Bytes, Reserved: m.Reserved, Change: m.Delta.Sum().Bytes, Changes: len(m.Delta), Rows: []row{},
	}
	changes := m.Delta
	least := leastOf(changes, rows)
	for _, c := range changes {
		if len(out.Rows) == rows || abs(c.Bytes) < least {
			continue
		}
		r := row{Kind: w.text(c.Kind.String()), Memory: notPlain(c.Memory.String()), Shape: w.text(c.Shape.String()), DType: c.DType.String(), Count: c.Count, Bytes: c.Bytes}
		var frames []mem.Frame
		for _, s := range c.CallSites {
			frames = append(frames, s.Frame)
		}
		r.Sites, r.More = w.sites(frames)
		out.Rows = append(out.Rows, r)
	}
	return out
}

// leastOf returns the size of the n-th largest change: smaller ones are not shown.
func leastOf(changes []snapshot.Change, n int) alloc.Bytes {
	if len(changes) <= n || n == 0 {
		return 0
	}
	sizes := make([]alloc.Bytes, len(changes))
	for i, c := range changes {
		sizes[i] = abs(c.Bytes)
	}
	slices.Sort(sizes)
	return sizes[len(sizes)-n]
}

func abs(b alloc.Bytes) alloc.Bytes { return max(b, -b) }
