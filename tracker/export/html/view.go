package html

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// device is what page.html shows of a device. An empty field is a card, a line or a column that the page leaves out.
type device struct {
	Name, Summary string
	When, Origin  string // of the state that is shown
	Shown         string // "at the error"
	Notice        *notice
	Tiles         []tile
	LeftOut       string // what the file lacks
	History       string // what the chart does not show
	NoHistory     string // why there is no chart
	Past          bool   // there is more than one moment
	Shapes, Types bool
	Segments      bool
	WhyReserved   []string
	Lost          []string
	LostSum       string
	Suspects      []string
	Growth        []string
	Sections      []section
	MoreSections  int
	Profile       []calls
	MoreProfile   int
	NoMarks       string
	EarlierMarks  int // that have no table on the page
	Data          data
}

// calls is what the page shows of a section's calls.
type calls struct {
	Path       string
	Calls      int64
	Time       time.Duration
	Peak, Kept alloc.Bytes
}

// device shows the facts in some detail.
func (f *facts) device(d detail) device {
	w := &writing{d, f.names}
	v := device{
		Name: w.long(export.Device(f.at)), When: f.when(), Origin: w.long(f.at.Origin.String()), Shown: f.shown(),
		Notice: w.notice(f), Tiles: tiles(f.at, f.peak()), LeftOut: strings.Join(f.dump.LeftOut(), "; "),
		History: f.history(), Past: f.past, Shapes: f.shapes, Types: f.types,
		Segments: f.hasSegments(), WhyReserved: w.list(f.stuck), Suspects: w.list(f.suspects), Growth: w.list(f.growth),
		Data: w.data(f), EarlierMarks: max(0, len(f.dump.Marks)-d.marks),
	}
	v.Summary = f.summary(v.Name)
	if f.timeline == nil {
		v.NoHistory = f.whyNoHistory()
	}
	if len(f.lost) > 0 {
		v.Lost, v.LostSum = w.lost(f.lost)
	}
	v.Sections, v.MoreSections = w.sections(f.sections)
	v.Profile, v.MoreProfile = w.profile(f.profile)
	for _, m := range f.dump.Marks[v.EarlierMarks:] {
		v.Data.Marks = append(v.Data.Marks, w.mark(m, d.changes))
	}
	if len(v.Data.Marks) == 0 {
		v.NoMarks = f.whyNoMarks()
	}
	return v
}

// shown names the moment that is shown: "at the error".
func (f *facts) shown() string { return "at " + f.moment.String() }

// when names the moment, and its time if that is known.
func (f *facts) when() string {
	if f.at.Time.IsZero() {
		return f.shown()
	}
	return f.at.Time.Format("2006-01-02 15:04:05 MST") + ", " + f.shown()
}

// summary describes the device of some name in a line.
func (f *facts) summary(name string) string {
	out := fmt.Sprintf("%s: %v live", name, f.at.Live.Bytes)
	if peak := f.peak(); peak != nil {
		out += fmt.Sprintf(", peak %v", peak.Bytes)
	}
	return out
}

// peak is nil if the source tells of one moment only.
func (f *facts) peak() *mem.Tally {
	if !f.past {
		return nil
	}
	return &f.dump.Snapshot.Peak
}

// history tells what the chart does not show.
func (f *facts) history() string {
	if f.timeline == nil {
		return ""
	}
	var words []string
	if dropped := tables.OfHistory(&f.dump.History).First; dropped > 0 {
		words = append(words, fmt.Sprintf("The history begins after %d earlier events or more.", dropped))
	}
	if f.timeline.Peak == nil && f.dump.Snapshot.Peak.Bytes > 0 {
		words = append(words, fmt.Sprintf("The peak, %v, was before the events that are left.", f.dump.Snapshot.Peak.Bytes))
	}
	if n := len(f.timeline.OOMs); n > 0 {
		words = append(words, fmt.Sprintf("Memory ran out where the red lines are; the last time %v were asked for.", f.timeline.OOMs[n-1].Bytes))
	}
	return strings.Join(words, " ")
}

// whyNoMarks tells what a dump without marks says of the program.
func (f *facts) whyNoMarks() string {
	switch {
	case f.source != walk.Tracker:
		return ""
	case !tables.OfHistory(&f.dump.History).Exists():
		return "A snapshot has no marks and no history: a dump does."
	case f.timeline != nil && len(f.timeline.Marks) > 0:
		return "The dump has the times of marks only, not their tables."
	}
	return "There are none: the program did not call Track."
}

// whyNoHistory tells how to get a history.
func (f *facts) whyNoHistory() string {
	switch f.source {
	case walk.BFC:
		return ""
	case walk.PyTorch:
		return "The file has no events, so there is nothing to draw over time. Call torch.cuda.memory._record_memory_history() at the program's start."
	}
	return "The snapshot has no history, so there is nothing to draw over time. A dump has one."
}

// hasSegments reports whether the segments of some moment are known.
func (f *facts) hasSegments() bool {
	return slices.ContainsFunc(f.moments.list, func(m moment) bool { return m.segments != nil })
}

// sections returns the first of the sections, and how many more there are.
func (w *writing) sections(all []section) (shown []section, more int) {
	for _, s := range all[:min(len(all), w.lines)] {
		s.Path = cmp.Or(w.text(s.Path), "outside of all")
		shown = append(shown, s)
	}
	return shown, len(all) - len(shown)
}

// profile returns the calls of the first sections, and how many more there are.
func (w *writing) profile(all []sections.Row) (shown []calls, more int) {
	for _, r := range all[:min(len(all), w.lines)] {
		shown = append(shown, calls{w.text(r.Path), r.Calls, r.Time.Round(time.Microsecond), r.Peak, r.Kept()})
	}
	return shown, len(all) - len(shown)
}
