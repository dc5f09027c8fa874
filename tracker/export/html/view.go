package html

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// deviceView shows the facts about a device in some detail.
type deviceView struct {
	*facts
	w      *writing
	data   data
	notice *notice // nil if there is none
}

func (f *facts) view(d detail) deviceView {
	w := &writing{d, f.names}
	v := deviceView{f, w, w.data(f), w.notice(f)}
	for _, m := range f.dump.Marks[v.earlierMarks():] {
		v.data.Marks = append(v.data.Marks, w.mark(m, d.changes))
	}
	return v
}

// earlierMarks is how many marks have no table on the page.
func (v *deviceView) earlierMarks() int { return max(0, len(v.dump.Marks)-v.w.detail.marks) }

// device names the device.
func (v *deviceView) device() string { return v.w.long(export.Device(v.at)) }

// shown names the moment that is shown: "at the error".
func (f *facts) shown() string { return "at " + f.moment.String() }

// when names the moment, and its time if that is known.
func (f *facts) when() string {
	if f.at.Time.IsZero() {
		return f.shown()
	}
	return f.at.Time.Format("2006-01-02 15:04:05 MST") + ", " + f.shown()
}

// summary describes the device in a line.
func (v *deviceView) summary() string {
	out := fmt.Sprintf("%s: %v live", v.device(), v.at.Live.Bytes)
	if peak := v.peak(); peak != nil {
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
	if dropped := tables.OfHistory(f.dump).First; dropped > 0 {
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
	case !tables.OfHistory(f.dump).Exists():
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
