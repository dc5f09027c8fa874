package live

import (
	"context"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is whose memory the pages show: a *tracker.MemTracker of this program, or an
// *attach.Source of another one. Any goroutine may call its methods.
//
// A source that also has the method ClearCache of a tracker holds its memory in this program:
// /profile then takes gc=1.
type Source interface {
	Snapshot() *snapshot.Snapshot
	LightSnapshot() *snapshot.Snapshot // without single allocations
	History() *snapshot.History
	Marks() []*snapshot.Mark
	// WaitMark returns the oldest mark kept whose Seq is above after, and waits for one if
	// there is none. The error is the context's, or alloc.ErrClosed when there will be no more.
	WaitMark(ctx context.Context, after int) (*snapshot.Mark, error)
	Record() *snapshot.Record
	Suspects(...snapshot.LeakOption) []snapshot.Suspect
	Growth() []snapshot.Growth
	// Dump writes the Record as JSON, and in it the reason.
	Dump(w io.Writer, reason string) error
}

// inside reports whether a source's memory is of this program.
func inside(s Source) bool {
	_, ok := s.(interface{ ClearCache() (alloc.Bytes, error) })
	return ok
}
