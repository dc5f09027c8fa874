package html

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// row is a line of a table of groups: buffers of one kind, shape and dtype.
type row struct {
	Kind   string      `json:"kind"`
	Memory string      `json:"memory,omitempty"` // if it is not plain device memory
	Shape  string      `json:"shape"`
	DType  string      `json:"dtype"`
	Count  int64       `json:"count"` // these may be negative in a mark's table
	Bytes  alloc.Bytes `json:"bytes"`
	Sites  []string    `json:"sites"` // that allocated them, those with most bytes first
	More   int         `json:"more,omitempty"`
}

// table is the largest rows, and what the others come to.
type table struct {
	Rows []row     `json:"rows"`
	More int       `json:"more"`
	Rest mem.Tally `json:"rest"`
}

// group is a group of the live table, or of those that were live at the peak.
type group struct {
	kind, shape, dtype, memory string
	sum                        mem.Tally
	sites                      map[mem.Frame]alloc.Bytes
}

// groups sums up the rows by group, in the measure that of gives. Where shapes are not
// known, buffers of one line of code are a group.
func groups(rows []export.Row, of func(*export.Row) mem.Tally) []*group {
	type key struct {
		kind, shape, dtype, memory string
		site                       mem.Frame
	}
	index := make(map[key]*group)
	for i := range rows {
		r := &rows[i]
		t := of(r)
		if t.IsZero() {
			continue
		}
		k := key{kind: r.Kind, shape: r.Shape, dtype: r.DType, memory: r.Memory}
		if r.Shape == "" {
			k.site = r.Site
		}
		g := index[k]
		if g == nil {
			g = &group{r.Kind, r.Shape, r.DType, r.Memory, mem.Tally{}, make(map[mem.Frame]alloc.Bytes)}
			index[k] = g
		}
		g.sum = g.sum.Add(t)
		g.sites[r.Site] += t.Bytes
	}
	return slices.SortedFunc(maps.Values(index), func(x, y *group) int {
		return cmp.Or(cmp.Compare(y.sum.Bytes, x.sum.Bytes), cmp.Compare(x.kind, y.kind), cmp.Compare(x.shape, y.shape), cmp.Compare(x.dtype, y.dtype), cmp.Compare(x.memory, y.memory))
	})
}

// table is the first rows of the list of groups.
func (w *writing) table(groups []*group, rows int) table {
	t := table{Rows: []row{}}
	for i, g := range groups {
		if i >= rows {
			t.More++
			t.Rest = t.Rest.Add(g.sum)
			continue
		}
		sites := slices.SortedFunc(maps.Keys(g.sites), func(x, y mem.Frame) int {
			return cmp.Or(cmp.Compare(g.sites[y], g.sites[x]), x.Compare(y))
		})
		r := row{Kind: w.text(g.kind), Memory: notPlain(g.memory), Shape: w.text(g.shape), DType: g.dtype, Count: g.sum.Count, Bytes: g.sum.Bytes}
		r.Sites, r.More = w.sites(sites)
		t.Rows = append(t.Rows, r)
	}
	return t
}

// notPlain returns the name of a kind of memory, "" of plain device memory and of an unknown one.
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
	Site     string      `json:"site"`
	Live     alloc.Bytes `json:"live"`
	Reserved alloc.Bytes `json:"reserved"`
	Change   alloc.Bytes `json:"change"`
	Changes  int         `json:"changes"` // groups that changed, of which Rows has the largest
	Rows     []row       `json:"rows"`
}

// mark shows the changes of most bytes, in the delta's order.
func (w *writing) mark(m *snapshot.Mark, rows int) mark {
	out := mark{
		Seq: m.Seq, Time: m.Time.Format("15:04:05.000"), Site: w.line(m.Site),
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
		for _, s := range c.Sites {
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
