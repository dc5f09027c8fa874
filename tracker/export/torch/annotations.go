package torch

import "github.com/gpumemtrack/gpumemtrack/tracker/snapshot"

// annotations writes the sections of all histories, as PyTorch writes those of its profiler.
func (w *writer) annotations(parts []*part) {
	w.name("external_annotations")
	l := w.beginList()
	for _, p := range parts {
		for e := range p.record.Events() {
			switch e.Action {
			case snapshot.SectionBegan:
				w.annotation(l, p.ordinal(), "START", e)
			case snapshot.SectionEnded:
				w.annotation(l, p.ordinal(), "END", e)
			}
		}
	}
	l.end()
}

func (w *writer) annotation(l *list, device int, stage string, e snapshot.Event) {
	l.next()
	w.beginDict()
	w.nameItem("stage", stage)
	w.nameItem("name", e.Section)
	w.intItem("device", int64(device))
	w.intItem("time_us", e.Time.UnixMicro())
	w.endDict()
}
