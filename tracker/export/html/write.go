package html

import (
	"bufio"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// The page's bounds.
const (
	maxGroups  = 500 // rows of the live table
	maxChanges = 200 // rows of a mark's table
	maxSites   = 4   // lines of code of a row
	maxMarks   = 200 // tables of marks, the latest
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.js
	pageJS string

	page = template.Must(template.New("page").Parse(pageHTML))
)

// Write writes the record as an HTML page.
func Write(w io.Writer, r export.Record) error {
	if r.Snapshot == nil {
		return fmt.Errorf("write HTML report: %w", export.ErrNoSnapshot)
	}
	out := bufio.NewWriterSize(w, 1<<16)
	if err := page.Execute(out, newView(r)); err != nil {
		return fmt.Errorf("write HTML report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write HTML report: %w", err)
	}
	return nil
}

// view is what the template reads.
type view struct {
	Parts  webpage.Parts
	Script template.JS

	Device, Origin, Time string
	Tiles                []tile
	Kinds                []share
	Chart                chart
	History              bool
	Dropped              uint64 // events that the history has forgotten
	Flame                *node
	Groups               []row
	MoreGroups           string // what the table leaves out
	Marks                []mark
	Earlier              int    // marks whose tables are left out
	NoMarks              string // why there are none
}

// tile is one number at the page's top.
type tile struct{ Name, Value, Note, ID string }

// share is a kind's part of the live bytes.
type share struct {
	Kind    string
	Value   string
	Percent float64
}

// row is a line of a table of groups.
type row struct {
	Kind, Shape, DType string
	Count              string
	Bytes              int64
	Size               string
	Percent            float64
	Sign               string // "+" or "-" in a mark's table
	Sites              []string
}

type mark struct {
	Seq                int
	Time, Site, Change string
	Live, Reserved     string
	Rows               []row
	More               string
}

func newView(r export.Record) view {
	s := r.Snapshot
	earlier := max(0, len(r.Marks)-maxMarks)
	r.Marks = r.Marks[earlier:]
	v := view{
		Parts: webpage.Get(), Script: template.JS(pageJS),
		Device: export.Device(s), Origin: s.Origin.String(), Time: s.Time.Format("2006-01-02 15:04:05 MST"),
		Tiles: tiles(s), Chart: newChart(r), Flame: newFlame(export.FromSnapshot(s)), Earlier: earlier,
	}
	if r.History != nil {
		v.History, v.Dropped = true, r.History.Dropped()
	}
	v.NoMarks = v.whyNoMarks()
	v.groups(s)
	for _, m := range slices.Backward(r.Marks) {
		v.Marks = append(v.Marks, newMark(m))
	}
	return v
}

// whyNoMarks tells what a record without marks says of the program.
func (v *view) whyNoMarks() string {
	switch {
	case !v.History:
		return "A snapshot has no marks and no history: a dump does."
	case len(v.Chart.Marks) > 0:
		return "The record has the times of marks only, not their tables."
	}
	return "None: the program did not call Track."
}

func tiles(s *tracker.Snapshot) []tile {
	out := []tile{
		{"Live", s.Live.Bytes.String(), buffers(s.Live.Count), "live"},
		{"Peak", s.Peak.Bytes.String(), buffers(s.Peak.Count), "peak"},
		{"Allocated", s.Allocated.String(), "after rounding", "allocated"},
		{"Reserved", s.Reserved.String(), reservedNote(s), "reserved"},
	}
	if s.DriverUsed >= 0 {
		out = append(out, tile{"Driver used", s.DriverUsed.String(), "of " + s.DriverTotal.String(), "driver"})
	}
	if s.Untracked() >= 0 {
		out = append(out, tile{"Untracked", s.Untracked().String(), "context, libraries, others", "untracked"})
	}
	return out
}

func reservedNote(s *tracker.Snapshot) string {
	if s.Cache == nil {
		return "held from the driver"
	}
	return fmt.Sprintf("%.0f %% external fragmentation", 100*s.Cache.ExternalFragmentation())
}

func buffers(n int64) string {
	if n == 1 {
		return "1 buffer"
	}
	return fmt.Sprintf("%d buffers", n)
}

// groups fills in the live table and the kinds' shares.
func (v *view) groups(s *tracker.Snapshot) {
	all := s.Live.Bytes
	kinds := make(map[tracker.Kind]alloc.Bytes)
	var more tracker.Tally
	for g := range s.Groups() {
		kinds[g.Kind] += g.Bytes
		if len(v.Groups) < maxGroups {
			v.Groups = append(v.Groups, newRow(tracker.Change(g), all))
		} else {
			more = more.Add(g.Tally)
		}
	}
	if !more.IsZero() {
		v.MoreGroups = "and smaller groups: " + more.String()
	}
	for _, kind := range tracker.Kinds() {
		if b := kinds[kind]; b > 0 {
			v.Kinds = append(v.Kinds, share{kind.String(), b.String(), percent(b, all)})
		}
	}
}

func percent(part, whole alloc.Bytes) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

func newRow(c tracker.Change, all alloc.Bytes) row {
	r := row{
		Kind: c.Kind.String(), Shape: c.Shape.String(), DType: c.DType.String(), Count: fmt.Sprint(max(c.Count, -c.Count)),
		Bytes: int64(c.Bytes), Size: max(c.Bytes, -c.Bytes).String(), Percent: percent(c.Bytes, all), Sign: "+",
	}
	if c.Count < 0 {
		r.Sign = "−"
	}
	for i, site := range c.Sites {
		if i == maxSites {
			r.Sites = append(r.Sites, fmt.Sprintf("and %d more", len(c.Sites)-i))
			break
		}
		r.Sites = append(r.Sites, site.Frame.String())
	}
	return r
}

func newMark(m *tracker.Mark) mark {
	sum := m.Delta.Sum()
	out := mark{
		Seq: m.Seq, Time: m.Time.Format("15:04:05.000"), Site: m.Site.String(),
		Live: m.Live.String(), Reserved: m.Reserved.String(), Change: "no change",
	}
	if !m.Delta.IsZero() {
		out.Change = signed(sum.Bytes)
	}
	for c := range m.Delta.Changes() {
		if len(out.Rows) == maxChanges {
			out.More = fmt.Sprintf("and %d more changes", m.Delta.Len()-maxChanges)
			break
		}
		out.Rows = append(out.Rows, newRow(c, 0))
	}
	return out
}

func signed(b alloc.Bytes) string {
	if b < 0 {
		return "− " + (-b).String()
	}
	return "+ " + b.String()
}
