package torch

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
)

// label returns the name of a buffer at the end: the label that Write gave it, the
// user_metadata of its allocation, or that it is freed and still used.
func (r *replay) label(e *ending) (string, error) {
	if e.pending() {
		return pendingLabel, nil
	}
	if label := r.text(e.value, r.key.label); label != "" || e.entry < 0 {
		return label, nil
	}
	label := r.metadata(r.labels[int(e.entry)])
	return label, r.Use(int64(len(label)))
}

const (
	maxLabel  = 256 // bytes
	maxFields = 8
)

// metadata prints a user_metadata, which is a text or a dict: "step=3, phase=forward".
func (r *replay) metadata(v plain.Value) string {
	if v.Kind() != plain.Dict {
		return cut(r.word(v))
	}
	var fields []string
	for name, value := range r.Each(v) {
		if len(fields) == maxFields {
			break
		}
		fields = append(fields, cut(name)+"="+cut(r.word(value)))
	}
	return cut(strings.Join(fields, ", "))
}

// cut bounds a label. A character that would be cut in two is left out.
func cut(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	return strings.ToValidUTF8(s[:maxLabel], "")
}
