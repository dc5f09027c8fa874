package html

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

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
