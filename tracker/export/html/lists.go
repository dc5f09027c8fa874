package html

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// profileRow is the sections of one path that have ended.
type profileRow struct {
	Path, Time, Peak, Kept string
	Calls                  int64
}

func (w *writing) profile(rows []sections.Row) (out []profileRow) {
	for _, r := range rows[:min(len(rows), w.lines)] {
		out = append(out, profileRow{w.text(r.Path), r.Time.Round(time.Microsecond).String(), r.Peak.String(), r.Kept().String(), r.Calls})
	}
	return out
}

// list is the first of a list of texts, each of several lines.
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
func (w *writing) lost(found []leaks.Leak) (lines []string, sum string) {
	var all mem.Tally
	for _, l := range found {
		all = all.Add(l.Tally)
		lines = append(lines, fmt.Sprintf("%v: %v %v %v from %s", l.Tally, l.Kind, l.Shape, l.DType, w.line(l.CallSite)))
	}
	return w.list(lines), all.String()
}

// timeline makes the names of the layers printable.
func (w *writing) timeline(t *timeline.Timeline) *timeline.Timeline {
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
