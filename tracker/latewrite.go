package tracker

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// LateWriteError says that work of the device wrote to memory after its Free: it corrupts what the
// next owner has there. See Config.FindLateWrites.
type LateWriteError struct {
	Device string      // name and ordinal
	Ptr    alloc.Ptr   // the first byte that was written to
	Size   alloc.Bytes // from there to the last

	Allocated snapshot.Frame // the line that allocated the buffer that was freed
	Freed     snapshot.Frame // the line that freed it
	Reused    snapshot.Frame // the line that was given the memory next; zero if there is none
}

func (e *LateWriteError) Error() string {
	next := "and is not allocated again"
	if e.Reused != (snapshot.Frame{}) {
		next = fmt.Sprintf("and allocated again at %v", e.Reused)
	}
	return fmt.Sprintf("work wrote to %v at %v on %s after its free: the memory was allocated at %v, freed at %v, %s: "+
		"wait for the work before Free, or name its stream with RecordStream or FreeOn", e.Size, e.Ptr, text.Line(e.Device), e.Allocated, e.Freed, next)
}

// maxLateWrites bounds what is kept and logged.
const maxLateWrites = 16

// LateWrites returns the first late writes found, up to sixteen: see Config.FindLateWrites.
func (t *MemTracker) LateWrites() []*LateWriteError {
	if t.freed == nil {
		return nil
	}
	t.freed.mu.Lock()
	defer t.freed.mu.Unlock()
	return append([]*LateWriteError(nil), t.freed.found...)
}
