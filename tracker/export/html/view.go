package html

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// deviceView is what the page shows about a device.
type deviceView struct {
	Data data

	Device, Origin   string
	Moment           string // that is shown: "at the error"
	When             string // the moment, and its time if that is known
	Summary          string // text that describes the device in the list to choose from
	Notice           *notice
	Tiles            []tile
	History          string // what the reader must know about the history
	Sections         []section
	MoreSections     int
	Profile          []profileRow
	MoreProfile      int
	Lost             []string
	LostSum          string
	Suspects, Growth []string
	Stuck            []string // why memory is reserved that no buffer uses
	NoHistory        string   // what to do for one; "" if nothing can be done
	Past             bool     // the source tells of more than one moment
	NoMarks          string   // why there are no marks; "" where there can be none
	Shapes, Types    bool     // which columns the source can fill
	HasSegments      bool
	EarlierMarks     int // whose tables are left out
	LeftOut          []string
}

func (f *facts) view(d detail) deviceView {
	r, s := f.dump, f.at
	w := &writing{d, f.names}
	earlier := max(0, len(r.Marks)-d.marks)
	v := deviceView{
		Device: w.long(export.Device(s)), Summary: f.summary(w), Origin: w.long(s.Origin.String()), When: f.when(), Past: f.past,
		Moment: "at " + f.moment.String(), Notice: w.notice(f), Tiles: tiles(s, f.peak()), History: f.history(), NoHistory: f.whyNoHistory(),
		NoMarks: f.whyNoMarks(), EarlierMarks: earlier, LeftOut: r.LeftOut(), Shapes: f.shapes, Types: f.types, HasSegments: f.hasSegments(),
		Data: w.data(f),
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

// when names the moment, and its time if that is known.
func (f *facts) when() string {
	if f.at.Time.IsZero() {
		return "at " + f.moment.String()
	}
	return f.at.Time.Format("2006-01-02 15:04:05 MST") + ", at " + f.moment.String()
}

// summary describes the device in a line.
func (f *facts) summary(w *writing) string {
	out := fmt.Sprintf("%s: %v live", w.long(export.Device(f.at)), f.at.Live.Bytes)
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
	if dropped := f.dump.History.Dropped(); dropped > 0 {
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
	case f.dump.History == nil:
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
