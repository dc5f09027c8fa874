package viewer

import (
	"cmp"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// rowJSON is a row of a table, or its total.
type rowJSON struct {
	Key       *uint64 `json:"key,omitempty"`
	Name      *string `json:"name,omitempty"`
	Kind      *uint16 `json:"kind"`
	LiveBytes int64   `json:"live_bytes"`
	LiveCount int64   `json:"live_count"`
	PeakBytes int64   `json:"peak_bytes"`
	PeakCount int64   `json:"peak_count"`
	BornBytes int64   `json:"born_bytes"`
	BornCount int64   `json:"born_count"`
	Lifetime  float64 `json:"lifetime"`
	Largest   *uint32 `json:"largest"`
}

func (t *track) row(s *bands.Sums) rowJSON {
	out := rowJSON{
		LiveBytes: s.LiveBytes, LiveCount: s.LiveCount, PeakBytes: s.PeakBytes, PeakCount: s.PeakCount, BornBytes: s.BornBytes, BornCount: s.BornCount, Lifetime: s.Lifetime,
	}
	if s.Largest != bands.None {
		kind := t.Kind(s.Largest)
		out.Largest, out.Kind = &s.Largest, &kind
	}
	return out
}

// tableKeys are what a table sums up by.
var tableKeys = map[string]bands.Key{"line": bands.ByLine, "kind": bands.ByKind, "stack": bands.ByCallStack, "size": bands.BySize}

// tableOrders are the columns that a table can be sorted by, largest first.
var tableOrders = map[string]func(*bands.Sums) float64{
	"live":     func(s *bands.Sums) float64 { return float64(s.LiveBytes) },
	"peak":     func(s *bands.Sums) float64 { return float64(s.PeakBytes) },
	"born":     func(s *bands.Sums) float64 { return float64(s.BornBytes) },
	"lifetime": func(s *bands.Sums) float64 { return s.Lifetime },
}

func table(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	axis, x0, x1 := a.axisOf(q)
	moment := a.momentOf(q, "moment")
	if a.track != nil && !q.Has("moment") {
		moment = a.about.Peak.Moment
	}
	by := tableKeys[q.Word("by", "line", "kind", "stack", "size")]
	sort, limit, offset := q.Word("sort", "live", "born", "lifetime", "peak", "name"), limitOf(q), q.Number("offset", 1<<20)
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		rows, total, err := bands.Table(r.Context(), a.Index, l, by, bands.Select(a.Index, moment, axis, x0, x1))
		if err != nil {
			return nil, err
		}
		a.sortRows(rows, by, sort)
		out := struct {
			Rows      []rowJSON `json:"rows"`
			RowsTotal int       `json:"rows_total"`
			Total     rowJSON   `json:"total"`
		}{[]rowJSON{}, len(rows), a.row(&total)}
		for i := range rows[min(offset, len(rows)):min(offset+limit, len(rows))] {
			from := &rows[offset+i]
			row := a.row(&from.Sums)
			name := a.keyName(by, from.Key)
			row.Key, row.Name = &from.Key, &name
			out.Rows = append(out.Rows, row)
		}
		return out, nil
	})
}

// sortRows sorts by a column, and equal ones by their key, so that pages of one table fit each other.
func (t *track) sortRows(rows []bands.Row, by bands.Key, order string) {
	if of := tableOrders[order]; of != nil {
		slices.SortFunc(rows, func(a, b bands.Row) int {
			return cmp.Or(cmp.Compare(of(&b.Sums), of(&a.Sums)), cmp.Compare(b.PeakBytes, a.PeakBytes), cmp.Compare(a.Key, b.Key))
		})
		return
	}
	names := make(map[uint64]string, len(rows))
	for _, row := range rows {
		names[row.Key] = strings.ToLower(t.keyName(by, row.Key))
	}
	slices.SortFunc(rows, func(a, b bands.Row) int {
		if by == bands.BySize {
			return cmp.Compare(a.Key, b.Key)
		}
		return cmp.Or(cmp.Compare(names[a.Key], names[b.Key]), cmp.Compare(a.Key, b.Key))
	})
}

func (t *track) keyName(by bands.Key, key uint64) string {
	switch by {
	case bands.ByKind:
		return t.Names.Kind(uint16(key))
	case bands.ByCallStack:
		_, line := t.Stack(uint32(key))
		return t.lineName(line)
	case bands.BySize:
		return alloc.Bytes(key).String()
	}
	return t.lineName(uint32(key))
}

// nodeJSON is a frame of a flame graph.
type nodeJSON struct {
	Name     string     `json:"name"`
	Place    string     `json:"place,omitempty"` // file and line
	Value    float64    `json:"value"`
	Count    int64      `json:"count"`
	Stack    *uint32    `json:"stack"`
	Depth    int        `json:"depth"`
	Children []nodeJSON `json:"children,omitempty"`
}

const (
	usualNodes = 2000
	maxNodes   = 10000
)

func flame(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	axis, x0, x1 := a.axisOf(q)
	lifetimes := q.Word("weight", "live", "lifetime") == "lifetime"
	moment, n := a.momentOf(q, "moment"), q.Number("limit", maxNodes)
	switch {
	case !q.Has("limit"):
		n = usualNodes
	case n < 1:
		q.Fail("limit=%d: want at least 1", n)
	}
	if a.track != nil && !q.Has("moment") {
		moment = a.about.Peak.Moment
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		root, err := bands.Flame(r.Context(), a.Index, l, bands.Select(a.Index, moment, axis, x0, x1), lifetimes, n)
		if err != nil {
			return nil, err
		}
		out := struct {
			Unit  string   `json:"unit"`
			Total float64  `json:"total"`
			Count int64    `json:"count"`
			Root  nodeJSON `json:"root"`
		}{"bytes", root.Value, root.Count, nodeOf(root)}
		out.Root.Name = "all"
		if lifetimes {
			if out.Unit = "byte_seconds"; a.Untimed() {
				out.Unit = "byte_events"
			}
		}
		return out, nil
	})
}

func nodeOf(f *bands.Frame) nodeJSON {
	out := nodeJSON{Name: "(more)", Value: f.Value, Count: f.Count, Depth: f.Depth}
	if f.Frame != (mem.Frame{}) {
		stack := f.Stack
		out.Stack = &stack
		out.Name = printable(path.Base(f.Function))
		if f.File != "" {
			out.Place = printable(f.Frame.String())
		}
	}
	for _, c := range f.Children {
		out.Children = append(out.Children, nodeOf(c))
	}
	return out
}

const (
	maxSegments = 1000
	maxBlocks   = 20000
)

// mapJSON is the segments of a moment.
type mapJSON struct {
	Reserved int64         `json:"reserved_bytes"`
	Live     int64         `json:"live_bytes"`
	Pending  int64         `json:"pending_bytes"`
	Inactive *int64        `json:"inactive_bytes"`
	Known    bool          `json:"known"`
	OfTheEnd bool          `json:"of_the_end"` // the events do not include segments: these are those of the end
	Segments []segmentJSON `json:"segments"`
	More     struct {
		Segments int   `json:"segments"`
		Bytes    int64 `json:"bytes"`
	} `json:"more"`
}

type segmentJSON struct {
	Address     string       `json:"address"`
	Bytes       int64        `json:"bytes"`
	Pool        string       `json:"pool"`
	Private     string       `json:"private"`
	Stream      alloc.Stream `json:"stream"`
	Expandable  bool         `json:"expandable"`
	Used        int64        `json:"used_bytes"`
	LargestFree int64        `json:"largest_free_bytes"`
	// Blocks are offset, bytes, state, allocation, line, kind, count and used bytes of each; -1 where there is none.
	Blocks [][8]int64 `json:"blocks"`
}

func segments(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	const usual, least, most = 1024, 16, 4096
	moment, width := a.momentOf(q, "moment"), q.Number("width", most)
	switch {
	case !q.Has("width"):
		width = usual
	case width < least:
		q.Fail("width=%d: want a number from %d to %d", width, least, most)
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		m := bands.MapOf(a.Index, l, moment, maxSegments, width, maxBlocks)
		out := mapJSON{Reserved: m.Reserved, Live: m.Live, Pending: m.Pending, Known: m.Known, Segments: []segmentJSON{}}
		out.More.Segments, out.More.Bytes = m.More, m.MoreBytes
		if m.Known {
			_, _, recorded := a.Allocated(moment)
			out.OfTheEnd = !recorded
			inactive := m.Inactive
			out.Inactive = &inactive
		}
		for _, s := range m.Segments {
			j := segmentJSON{
				Address: s.Ptr.String(), Bytes: int64(s.Size), Pool: s.Pool, Private: printable(s.Private), Stream: s.Stream, Expandable: s.Expandable,
				Used: s.Used, LargestFree: s.LargestFree, Blocks: [][8]int64{},
			}
			for _, b := range s.Blocks {
				block := [8]int64{b.Offset, b.Bytes, int64(b.State), -1, -1, -1, int64(b.Count), b.Used}
				if b.ID != bands.None {
					block[3], block[4], block[5] = int64(b.ID), int64(a.Line(b.ID)), int64(a.Kind(b.ID))
				}
				j.Blocks = append(j.Blocks, block)
			}
			out.Segments = append(out.Segments, j)
		}
		return out, nil
	})
}
