package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Leaks returns what is live, by call stack, kind, shape, dtype and section:
// lost buffers first, then more bytes first. It costs what a Snapshot does.
func (t *MemTracker) Leaks(opts ...LeakOption) []snapshot.Leak { return t.Snapshot().Leaks(opts...) }

// Suspects returns the lines of code with live buffers that look forgotten, more
// bytes first: see [snapshot.Snapshot.Suspects]. It needs no marks, and costs what a
// Snapshot does.
func (t *MemTracker) Suspects(opts ...LeakOption) []snapshot.Suspect {
	return t.Snapshot().Suspects(opts...)
}

// Growth returns the lines of code whose live bytes rise over the marks, steeper
// ones first: see [snapshot.Snapshot.Growth]. It costs a pass over the lines, and a Snapshot if
// one grows.
func (t *MemTracker) Growth() []snapshot.Growth {
	if lines, _ := t.growing(); len(lines) == 0 {
		return nil
	}
	return t.Snapshot().Growth()
}
