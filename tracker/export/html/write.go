package html

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.js
	pageJS string

	page = template.Must(template.New("page").Parse(pageHTML))
)

// Policy returns the Content-Security-Policy of the pages that Write writes, for a
// server that sends one. The pages have it in them too.
func Policy() string { return webpage.Policy(pageJS) }

// maxPage is the size of a page. What is small is left out until it fits.
const maxPage = 2 << 20

// Write writes the record as an HTML page. The error is export.ErrNoSnapshot or the writer's.
func Write(w io.Writer, r *snapshot.Record) error {
	if r.Snapshot == nil {
		return fmt.Errorf("write HTML report: %w", export.ErrNoSnapshot)
	}
	devices, more := factsOf(r)
	for d := full; ; d = d.half() {
		var b bytes.Buffer
		if err := page.Execute(&b, viewOf(devices, more, d)); err != nil {
			return fmt.Errorf("write HTML report: %w", err)
		}
		if b.Len() > maxPage && d.frames > 1 {
			continue
		}
		if _, err := b.WriteTo(w); err != nil {
			return fmt.Errorf("write HTML report: %w", err)
		}
		return nil
	}
}

// maxDevices bounds the devices that a page shows.
const maxDevices = 32

// factsOf returns what there is to show of each device, and how many there are more.
func factsOf(r *snapshot.Record) (devices []*facts, more int) {
	for _, d := range append([]*snapshot.Record{r}, r.Others...) {
		switch {
		case d.Snapshot == nil: // there is nothing to show
		case len(devices) == maxDevices:
			more++
		default:
			devices = append(devices, newFacts(d))
		}
	}
	return devices, more
}

// facts are what a page shows of a device, before the small is left out.
type facts struct {
	record     *snapshot.Record
	usage      *export.Usage
	names      *export.LineNames
	timeline   *export.Timeline // nil without a history
	live, peak []*group
	host       []*group // live, in host memory
	sections   []section
	profile    []snapshot.ProfileRow
	lost       []snapshot.Leak
	suspects   []string
	growth     []string
	stuck      []string
}

// section is what the buffers hold that a section of the program allocated.
type section struct {
	Path             string
	Live, Peak, Ever snapshot.Tally
}

func newFacts(r *snapshot.Record) *facts {
	s := r.Snapshot
	f := &facts{record: r, usage: export.FromSnapshot(s)}
	rows := f.usage.Rows
	f.names = export.NewLineNames(func(yield func(snapshot.Frame) bool) {
		for i := range rows {
			if !yield(rows[i].Site) {
				return
			}
		}
	})
	if r.History != nil && r.History.Len() > 0 {
		f.timeline = export.NewTimeline(r)
	}
	f.live = groups(rows, func(r *export.Row) snapshot.Tally { return r.Live })
	f.peak = groups(rows, func(r *export.Row) snapshot.Tally { return r.Peak })
	f.host = groups(f.usage.Host, func(r *export.Row) snapshot.Tally { return r.Live })
	f.sections = sections(rows)
	if r.Profile != nil {
		f.profile = slices.Collect(r.Profile.Rows())
	}
	f.lost = s.Leaks(snapshot.OnlyLost())
	for _, suspect := range s.Suspects() {
		f.suspects = append(f.suspects, suspect.String())
	}
	for _, growth := range s.Growth() {
		f.growth = append(f.growth, growth.String())
	}
	if len(s.Segments) > 0 {
		f.stuck = slices.Collect(strings.Lines(s.Explain().String()))
	}
	return f
}

// sections sums up the rows by section, more live bytes first; nil if there is none.
func sections(rows []export.Row) []section {
	index := make(map[string]int)
	var list []section
	for i := range rows {
		r := &rows[i]
		at, ok := index[r.Section]
		if !ok {
			at = len(list)
			index[r.Section] = at
			list = append(list, section{Path: r.Section})
		}
		s := &list[at]
		s.Live, s.Peak, s.Ever = s.Live.Add(r.Live), s.Peak.Add(r.Peak), s.Ever.Add(r.Total)
	}
	if _, outside := index[""]; outside && len(list) == 1 {
		return nil
	}
	slices.SortStableFunc(list, func(x, y section) int { return int(max(-1, min(1, y.Live.Bytes-x.Live.Bytes))) })
	return list
}

// view is what the template reads.
type view struct {
	Parts       webpage.Parts
	Policy      string
	Script      template.JS
	First       deviceView
	Others      []deviceView // the process's other devices
	MoreDevices int
}

func viewOf(devices []*facts, more int, d detail) view {
	v := view{Parts: webpage.Get(), Policy: Policy(), Script: template.JS(pageJS), First: devices[0].view(d), MoreDevices: more}
	for _, f := range devices[1:] {
		v.Others = append(v.Others, f.view(d))
	}
	return v
}

// deviceView is what the template reads of a device.
type deviceView struct {
	Data data

	Device, Origin, Time string
	Summary              string // of the device, to choose it by
	Notice               *notice
	Tiles                []tile
	Kinds                []share
	History              string // what is to know of it
	Sections             []section
	MoreSections         int
	Profile              []profileRow
	MoreProfile          int
	Lost                 []string
	LostSum              string
	Suspects, Growth     []string
	Stuck                []string // why memory is reserved that no buffer uses
	NoMarks              string   // why there are none
	EarlierMarks         int      // whose tables are left out
	LeftOut              []string
}

// data is what the page's script reads.
type data struct {
	Timeline *export.Timeline `json:"timeline"`
	Flame    *node            `json:"flame"`
	Live     table            `json:"live"`
	Peak     table            `json:"peak"`
	Marks    []mark           `json:"marks"`
	Segments *segmentMap      `json:"segments"`
}

// tile is one number at the page's top.
type tile struct{ Name, Value, Note, ID string }

// share is a kind's part of the live bytes.
type share struct {
	Kind    string
	Colour  template.CSS
	Value   string
	Percent float64
}

func (f *facts) view(d detail) deviceView {
	r, s := f.record, f.record.Snapshot
	w := &writing{d, f.names}
	flame := newFlame(f.usage.Rows, w.text)
	flame.cut(d.frames)
	earlier := max(0, len(r.Marks)-d.marks)
	v := deviceView{
		Device: w.long(export.Device(s)), Summary: fmt.Sprintf("%s: %v live, peak %v", w.long(export.Device(s)), s.Live.Bytes, s.Peak.Bytes), Origin: w.long(s.Origin.String()), Time: s.Time.Format("2006-01-02 15:04:05 MST"),
		Notice: w.notice(r), Tiles: tiles(s), Kinds: w.kinds(f.live, s.Live.Bytes), History: f.history(),
		NoMarks: f.whyNoMarks(), EarlierMarks: earlier, LeftOut: leftOut(r.LeftOut),
		Data: data{
			Timeline: w.timeline(f.timeline), Flame: flame, Live: w.table(slices.Concat(f.live, f.host), d.groups), Peak: w.table(f.peak, d.groups),
			Marks: []mark{}, Segments: w.segments(s, d.segments),
		},
	}
	for _, m := range r.Marks[earlier:] {
		v.Data.Marks = append(v.Data.Marks, w.mark(m, d.changes))
	}
	for _, part := range f.sections[:min(len(f.sections), d.lines)] {
		part.Path = w.text(part.Path)
		v.Sections = append(v.Sections, part)
	}
	v.MoreSections = len(f.sections) - len(v.Sections)
	v.Profile = w.profile(f.profile)
	v.MoreProfile = len(f.profile) - len(v.Profile)
	v.Lost, v.LostSum = w.lost(f.lost)
	v.Suspects, v.Growth, v.Stuck = w.list(f.suspects), w.list(f.growth), w.list(f.stuck)
	return v
}

// profileRow is the sections of one path that have ended.
type profileRow struct {
	Path, Time, Peak, Kept string
	Calls                  int64
}

func (w *writing) profile(rows []snapshot.ProfileRow) (out []profileRow) {
	for _, r := range rows[:min(len(rows), w.lines)] {
		out = append(out, profileRow{w.text(r.Path), r.Time.Round(time.Microsecond).String(), r.Peak.String(), r.Kept().String(), r.Calls})
	}
	return out
}

// list cuts a list of texts of several lines off.
func (w *writing) list(texts []string) (out []string) {
	for i, text := range texts {
		if i == w.lines {
			return append(out, fmt.Sprintf("and %d more", len(texts)-i))
		}
		var lines []string
		for line := range strings.Lines(strings.TrimSpace(text)) {
			lines = append(lines, strings.TrimSpace(w.long(line)))
		}
		out = append(out, strings.Join(lines, "\n"))
	}
	return out
}

// lost returns the buffers that the program can no longer free.
func (w *writing) lost(leaks []snapshot.Leak) (lines []string, sum string) {
	var all snapshot.Tally
	for _, l := range leaks {
		all = all.Add(l.Tally)
		lines = append(lines, fmt.Sprintf("%v: %v %v %v from %s", l.Tally, l.Kind, l.Shape, l.DType, w.line(l.Site)))
	}
	return w.list(lines), all.String()
}

// timeline makes the names of the layers printable.
func (w *writing) timeline(t *export.Timeline) *export.Timeline {
	if t == nil {
		return nil
	}
	out := *t
	for _, layers := range []*[]export.Layer{&out.Kinds, &out.Sites} {
		*layers = slices.Clone(*layers)
		for i := range *layers {
			(*layers)[i].Name = w.text((*layers)[i].Name)
		}
	}
	return &out
}

// history tells what the chart does not show.
func (f *facts) history() string {
	if f.timeline == nil {
		return ""
	}
	var words []string
	if dropped := f.record.History.Dropped(); dropped > 0 {
		words = append(words, fmt.Sprintf("The history begins after %d earlier events or more.", dropped))
	}
	if f.timeline.Peak == nil && f.record.Snapshot.Peak.Bytes > 0 {
		words = append(words, fmt.Sprintf("The peak, %v, was before the events that are left.", f.record.Snapshot.Peak.Bytes))
	}
	if n := len(f.timeline.OOMs); n > 0 {
		words = append(words, fmt.Sprintf("Memory ran out where the red lines are; the last time %v were asked for.", f.timeline.OOMs[n-1].Bytes))
	}
	return strings.Join(words, " ")
}

// whyNoMarks tells what a record without marks says of the program.
func (f *facts) whyNoMarks() string {
	switch {
	case f.record.History == nil:
		return "A snapshot has no marks and no history: a dump does."
	case f.timeline != nil && len(f.timeline.Marks) > 0:
		return "The record has the times of marks only, not their tables."
	}
	return "There are none: the program did not call Track."
}

func tiles(s *snapshot.Snapshot) []tile {
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
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m != alloc.DeviceMemory && !live.IsZero() {
			note := "part of live"
			if m.OnHost() {
				note = "on the host"
			}
			out = append(out, tile{capital(m.String()), live.Bytes.String(), buffers(live.Count) + ", " + note, m.String()})
		}
	}
	return out
}

func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

func reservedNote(s *snapshot.Snapshot) string {
	if s.Cache == nil {
		return "held from the driver"
	}
	pending := ""
	if s.Pending > 0 {
		pending = fmt.Sprintf("; %v pending, in use on other streams", s.Pending)
	}
	inactive := s.Cache.Inactive.Bytes.Current
	if inactive == 0 {
		return "all of it in use" + pending
	}
	return fmt.Sprintf("%v inactive, at most %v in a piece", inactive, s.Cache.LargestInactive) + pending
}

func buffers(n int64) string {
	if n == 1 {
		return "1 buffer"
	}
	return fmt.Sprintf("%d buffers", n)
}

// kinds returns the kinds' shares of what is live.
func (w *writing) kinds(live []*group, all alloc.Bytes) (out []share) {
	sums := make(map[string]alloc.Bytes)
	var order []string
	for _, g := range live {
		if sums[g.kind] == 0 {
			order = append(order, g.kind)
		}
		sums[g.kind] += g.sum.Bytes
	}
	slices.SortStableFunc(order, func(x, y string) int { return int(max(-1, min(1, sums[y]-sums[x]))) })
	for _, kind := range order[:min(len(order), w.lines)] {
		if b := sums[kind]; b > 0 {
			out = append(out, share{w.text(kind), webpage.KindColour(kind), b.String(), percent(b, all)})
		}
	}
	return out
}

func percent(part, whole alloc.Bytes) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// leftOut tells what a dump lacks.
func leftOut(l snapshot.LeftOut) (words []string) {
	for _, part := range []struct {
		n    int64
		what string
	}{
		{l.Events, "older events"}, {l.Marks, "older marks"}, {l.Segments, "segments of the cache"},
		{l.Allocations.Count, "single buffers, which the tables count"}, {l.Sites, "call stacks that held least"},
	} {
		if part.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	return words
}
