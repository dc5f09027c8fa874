package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Leaks returns the live buffers by call stack, kind, shape, dtype and section: lost buffers
// first, then by size. It costs as much as a Snapshot.
func (t *MemTracker) Leaks(opts ...LeakOption) []snapshot.Leak { return t.Snapshot().Leaks(opts...) }

// Suspects returns the lines of code with live buffers that look forgotten, largest first: see
// snapshot.Snapshot.Suspects. It needs no marks, and costs as much as a Snapshot.
func (t *MemTracker) Suspects(opts ...LeakOption) []snapshot.Suspect {
	return t.Snapshot().Suspects(opts...)
}

// Growth returns the lines of code whose live bytes rise over the marks, steeper ones first:
// see snapshot.Snapshot.Growth. It takes a pass over the lines, and a Snapshot if one of them
// grows.
func (t *MemTracker) Growth() []snapshot.Growth {
	if lines, _ := t.growing(); len(lines) == 0 {
		return nil
	}
	return t.Snapshot().Growth()
}
