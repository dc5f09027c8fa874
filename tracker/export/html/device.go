package html

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
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
	Leaked        []string
	LeakedSum     string
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
	Path           string
	Calls          int64
	Time           time.Duration
	Peak, Retained alloc.Bytes
}

// device shows the facts in some detail.
func (f *facts) device(d detail) device {
	w := &writer{d, f.names}
	v := device{
		Name: w.long(export.Device(f.at)), When: f.when(), Origin: w.long(f.at.Origin.String()), Shown: f.shown(),
		Notice: w.notice(f), Tiles: tiles(f.at, f.peak()), LeftOut: strings.Join(f.dump.LeftOut(), "; "),
		History: f.history(), Past: f.past, Shapes: f.shapes, Types: f.types,
		Segments: f.hasSegments(), WhyReserved: w.list(f.whyReserved), Suspects: w.list(f.suspects), Growth: w.list(f.growth),
		Data: w.data(f), EarlierMarks: max(0, len(f.dump.Marks)-d.marks),
	}
	v.Summary = f.summary(v.Name)
	if f.timeline == nil {
		v.NoHistory = f.whyNoHistory()
	}
	if len(f.leaked) > 0 {
		v.Leaked, v.LeakedSum = w.leaked(f.leaked)
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
	return text.When(f.at.Time) + ", " + f.shown()
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
func (w *writer) sections(all []section) (shown []section, more int) {
	for _, s := range all[:min(len(all), w.lines)] {
		s.Path = cmp.Or(w.text(s.Path), "outside of all")
		shown = append(shown, s)
	}
	return shown, len(all) - len(shown)
}

// profile returns the calls of the first sections, and how many more there are.
func (w *writer) profile(all []sections.Row) (shown []calls, more int) {
	for _, r := range all[:min(len(all), w.lines)] {
		shown = append(shown, calls{w.text(r.Path), r.Calls, r.Time.Round(time.Microsecond), r.Peak, r.Retained()})
	}
	return shown, len(all) - len(shown)
}

// tile is one of the numbers at the top of the page.
type tile struct{ Name, Value, Note, ID string }

// tiles returns the tiles of a state. peak is nil if it is unknown.
func tiles(s *snapshot.Snapshot, peak *mem.Tally) []tile {
	out := []tile{{"Live", s.Live.Bytes.String(), buffers(s.Live.Count), "live"}}
	if peak != nil {
		out = append(out, tile{"Peak", peak.Bytes.String(), buffers(peak.Count), "peak"})
	}
	out = append(out,
		tile{"Allocated", s.Allocated.String(), "after rounding", "allocated"},
		tile{"Reserved", s.Reserved.String(), reservedNote(s), "reserved"},
	)
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

// notice says why the dump was written. A failed allocation is named before anything else.
type notice struct {
	OutOfMemory bool
	What        string
	Advice      string
	Facts       []string
	Holders     []string // the lines of code that hold most
}

// notice returns nil if there is no reason.
func (w *writer) notice(f *facts) *notice {
	r := f.dump
	if r.OOM == nil {
		if r.Reason == "" {
			return nil
		}
		first, _, _ := strings.Cut(r.Reason, "\n")
		return &notice{What: w.long(first)}
	}
	o := r.OOM
	what := ""
	if o.DType.Bits() > 0 { // an unknown type is not named
		what = fmt.Sprintf(" for a buffer, %v %v %v,", o.Kind, o.Shape, o.DType)
	}
	n := &notice{
		OutOfMemory: true, Advice: w.long(o.Advice),
		What: w.long(fmt.Sprintf("%v were asked for,%s on %s.", o.Requested, what, export.Device(r.Snapshot))),
	}
	if o.Requested < 0 {
		n.What = w.long(fmt.Sprintf("The file does not tell how much was asked for%s on %s.", strings.TrimSuffix(what, ","), export.Device(r.Snapshot)))
	}
	if o.Section != "" {
		n.Facts = append(n.Facts, w.long(f.place()+o.Section))
	}
	for _, part := range []struct {
		n    alloc.Bytes
		what string
	}{
		{o.Free, "free, as the driver says"},
		{o.Total, "is what the device has"},
		{o.Reserved, "reserved by this program"},
		{f.inactive(), "of that inactive, ready for reuse"},
		{o.LargestInactive, "in the largest inactive block"},
		{o.Untracked, "in use that the tracker does not explain"},
		{o.Elsewhere, "inactive in the caches of other trackers of this process"},
		{o.Others, "used by other processes"},
	} {
		if part.n >= 0 {
			n.Facts = append(n.Facts, fmt.Sprintf("%v %s", part.n, part.what))
		}
	}
	for _, site := range o.CallSites[:min(len(o.CallSites), w.lines)] {
		n.Holders = append(n.Holders, fmt.Sprintf("%v from %s", site.Tally, w.line(site.Frame)))
	}
	return n
}

// place introduces what asked for the memory. A log names an operation.
func (f *facts) place() string {
	if f.source == walk.BFC {
		return "by the operation "
	}
	return "in the section "
}

// inactive returns what of the reserved memory no buffer used at the error; negative if it is not known.
func (f *facts) inactive() alloc.Bytes {
	if inactive := f.dump.OOM.Inactive; inactive >= 0 || f.moment.At != "oom" || len(f.at.Segments) == 0 {
		return inactive
	}
	return max(0, f.at.Reserved-(f.at.Allocated-f.at.Registered))
}

// list is the first of a list of texts, each of several lines.
func (w *writer) list(texts []string) (out []string) {
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

// leaked returns the buffers that the program can no longer free.
func (w *writer) leaked(found []leaks.Leak) (lines []string, sum string) {
	var all mem.Tally
	for _, l := range found {
		all = all.Add(l.Tally)
		lines = append(lines, fmt.Sprintf("%v: %v %v %v from %s", l.Tally, l.Kind, l.Shape, l.DType, w.line(l.CallSite)))
	}
	return w.list(lines), all.String()
}

// timeline makes the names of the layers printable.
func (w *writer) timeline(t *timeline.Timeline) *timeline.Timeline {
	if t == nil {
		return nil
	}
	out := *t
	for _, layers := range []*[]timeline.Layer{&out.Kinds, &out.Sites} {
		*layers = slices.Clone(*layers)
		for i := range *layers {
			(*layers)[i].Name = w.text((*layers)[i].Name)
		}
	}
	return &out
}
