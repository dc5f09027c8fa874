package html

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
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

// thin removes moments without a name until about most are left. shown is the index of the moment
// shown first.
func (m *moments) thin(most int) (list []moment, shown int) {
	for i, x := range m.list {
		if i == m.shown {
			shown = len(list)
		}
		if len(m.list) <= most || len(x.names) > 0 || i == m.shown || i*most/len(m.list) != (i+1)*most/len(m.list) {
			list = append(list, x)
		}
	}
	return list, shown
}

// data writes the moments and what they need.
func (w *writing) data(f *facts) data {
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

// ofKinds returns the bytes of each kind in the device's memory.
func (x *moment) ofKinds(rows []export.Row, kinds []string) []alloc.Bytes {
	sums := make([]alloc.Bytes, len(kinds))
	for row, t := range x.live {
		if i := slices.Index(kinds, rows[row].Kind); i >= 0 && !onHost(&rows[row]) {
			sums[i] += t.Bytes
		}
	}
	return sums
}

// mapWriter writes the maps of moments, each as its difference from the one before.
type mapWriter struct {
	*writing
	uses *uses
	ids  tables.Numbers[alloc.Ptr]
	was  map[alloc.Ptr]segment
}

func newMapWriter(w *writing, u *uses) *mapWriter {
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
		if old, had := w.was[s.ptr]; !had || !old.equal(&s) {
			out.Changed = append(out.Changed, w.segment(id, s, w.uses))
		}
	}
	for p := range w.was {
		if _, still := now[p]; !still {
			out.Gone = append(out.Gone, w.ids[p])
		}
	}
	slices.Sort(out.Gone)
	w.was = now
	return out
}
