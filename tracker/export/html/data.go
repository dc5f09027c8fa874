package html

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// data is the JSON that the page's script reads.
type data struct {
	Timeline *timeline.Timeline `json:"timeline"`
	Flame    *node              `json:"flame"`
	Groups   []group            `json:"groups"` // lines of the table
	Pairs    []int              `json:"pairs"`  // each pair of frame and group that moments count; -1 is one that is not shown
	Kinds    []string           `json:"kinds"`  // empty if the source does not know any
	Uses     []string           `json:"uses"`   // what blocks are used for: kinds, or lines of code
	Moments  []state            `json:"moments"`
	Moment   int                `json:"moment"` // index of the moment shown first
	Marks    []mark             `json:"marks"`
}

// state is a moment, as a difference from the moment before.
type state struct {
	Names     []string      `json:"names,omitempty"`
	At        int           `json:"at"` // the place on the chart; -1 before it
	Event     uint64        `json:"event"`
	Live      alloc.Bytes   `json:"live"`
	Count     int64         `json:"count"`
	Allocated alloc.Bytes   `json:"allocated"` // negative if it is not known
	Reserved  alloc.Bytes   `json:"reserved"`
	Kinds     []alloc.Bytes `json:"kinds,omitempty"`
	Changes   []int64       `json:"changes"` // for each changed pair: its number, its buffers and its bytes
	Segments  *stateMap     `json:"segments,omitempty"`
}

// stateMap holds the segments that are new or changed, those that are gone, and the sum of all
// others.
type stateMap struct {
	Changed  []segmentJSON `json:"changed"`
	Gone     []int         `json:"gone,omitempty"`
	More     int           `json:"more,omitempty"`
	MoreSize alloc.Bytes   `json:"moreSize,omitempty"`
}

// data writes the moments and what they need.
func (w *writer) data(f *facts) data {
	m := f.moments
	list, shown := m.thin(w.moments)
	flame := newFlame(m.rows, list, w.text, w.frames)
	out := data{Timeline: w.timeline(f.timeline), Flame: flame.root, Pairs: []int{}, Kinds: []string{}, Moment: shown, Marks: []mark{}}
	var groupOf []int
	out.Groups, groupOf = w.groupsOf(m.rows, list, shown)
	pairs := make(tables.Numbers[[2]int])
	pairOf := make([]int, len(m.rows))
	for row := range m.rows {
		pair := [2]int{flame.of(row), groupOf[row]}
		i, isNew := pairs.Of(pair)
		if isNew {
			out.Pairs = append(out.Pairs, pair[0], pair[1])
		}
		pairOf[row] = i
	}
	for _, kind := range f.kinds[:min(len(f.kinds), w.lines)] {
		out.Kinds = append(out.Kinds, w.text(kind))
	}
	uses := &uses{byLine: len(f.kinds) == 0, index: make(tables.Numbers[string])}
	maps := newMapWriter(w, uses)
	var last []mem.Tally
	for _, x := range list {
		now := make([]mem.Tally, len(pairs))
		for row, t := range x.live {
			now[pairOf[row]] = now[pairOf[row]].Add(t)
		}
		out.Moments = append(out.Moments, state{
			Names: x.names, At: x.at, Event: x.next, Live: x.Live.Bytes, Count: x.Live.Count, Allocated: x.Allocated, Reserved: x.Reserved,
			Kinds: x.ofKinds(m.rows, f.kinds[:len(out.Kinds)]), Changes: changes(last, now), Segments: maps.next(x.segments),
		})
		last = now
	}
	out.Uses = uses.names
	return out
}

// changes returns the differences: the index, buffers and bytes of each.
func changes(from, to []mem.Tally) []int64 {
	list := []int64{}
	for i, t := range to {
		if i < len(from) {
			t = t.Sub(from[i])
		}
		if !t.IsZero() {
			list = append(list, int64(i), t.Count, int64(t.Bytes))
		}
	}
	return list
}

// mapWriter writes the maps of moments, each as its difference from the one before.
type mapWriter struct {
	*writer
	uses     *uses
	ids      tables.Numbers[alloc.Ptr]
	previous map[alloc.Ptr]segment
}

func newMapWriter(w *writer, u *uses) *mapWriter {
	return &mapWriter{w, u, make(tables.Numbers[alloc.Ptr]), make(map[alloc.Ptr]segment)}
}

// next writes the map of the next moment; nil if it is not known.
func (w *mapWriter) next(m *segmentMap) *stateMap {
	if m == nil {
		return nil
	}
	out := &stateMap{Changed: []segmentJSON{}, More: m.more, MoreSize: m.moreSize}
	now := make(map[alloc.Ptr]segment)
	for _, s := range m.rows[min(len(m.rows), w.segments):] {
		out.More++
		out.MoreSize += s.size
	}
	for _, s := range m.rows[:min(len(m.rows), w.segments)] {
		id, _ := w.ids.Of(s.ptr)
		now[s.ptr] = s
		if old, had := w.previous[s.ptr]; !had || !old.equal(&s) {
			out.Changed = append(out.Changed, w.segment(id, s, w.uses))
		}
	}
	for p := range w.previous {
		if _, still := now[p]; !still {
			out.Gone = append(out.Gone, w.ids[p])
		}
	}
	slices.Sort(out.Gone)
	w.previous = now
	return out
}

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

// groupsOf writes the table's lines, and says of each row which it is in; -1 of one that is left out.
func (w *writer) groupsOf(rows []export.Row, list []moment, opens int) (out []group, of []int) {
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

func (w *writer) sites(frames []mem.Frame) (names []string, more int) {
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
func (w *writer) mark(m *snapshot.Mark, rows int) mark {
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

// segmentJSON is a segment, as the page's script reads it.
type segmentJSON struct {
	ID       int         `json:"id"`
	Size     alloc.Bytes `json:"size"`
	Used     alloc.Bytes `json:"used"`
	Blocks   int         `json:"blocks"`
	Runs     []int       `json:"runs"` // pairs: a use (-1 is free) and its length
	Pins     []string    `json:"pins"`
	MorePins int         `json:"morePins,omitempty"`
}

// segment writes a segment.
func (w *writer) segment(id int, s segment, uses *uses) segmentJSON {
	out := segmentJSON{ID: id, Size: s.size, Used: s.used, Blocks: s.blocks, Runs: []int{}, Pins: []string{}, MorePins: s.morePins}
	for _, r := range s.runs {
		out.Runs = append(out.Runs, uses.of(w, r.use), r.part)
	}
	for _, p := range s.pins {
		out.Pins = append(out.Pins, w.pin(p, uses.byLine))
	}
	return out
}

func (w *writer) pin(p pin, byLine bool) string {
	switch {
	case p.owner == pending:
		return p.held.String() + " freed, but work on another stream may still use it"
	case p.line == mem.Frame{}:
		return p.held.String() + " that the dump does not name"
	case byLine:
		return p.held.String() + " from " + w.line(p.line)
	}
	return p.held.String() + " of " + w.text(p.kind.String()) + " from " + w.line(p.line)
}

// uses are the kinds of blocks or, if these are not known, their lines of code.
type uses struct {
	byLine bool
	index  tables.Numbers[string]
	names  []string
}

// of returns the number of a use; -1 for free memory.
func (u *uses) of(w *writer, o owner) int {
	if !o.used {
		return -1
	}
	name := w.text(o.kind.String())
	if u.byLine && o != pending && o != unnamed {
		name = w.line(o.line)
	}
	i, isNew := u.index.Of(name)
	if isNew {
		u.names = append(u.names, name)
	}
	return i
}
