package snapshot

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Event is one thing that happened to device memory. Fields that do not belong
// to its action are zero.
type Event struct {
	Seq       uint64 // position in the whole history, from 0
	Time      time.Time
	Action    mem.Action
	Ptr       alloc.Ptr
	Requested alloc.Bytes
	Allocated alloc.Bytes
	Kind      mem.Kind
	Shape     alloc.Shape // shared: do not write
	DType     alloc.DType
	Memory    alloc.Memory
	Section   string // its path; of a free, the section of the allocation
	Stream    alloc.Stream
	Span      uint64    // SectionBegan and SectionEnded: the same number for both of one section
	Mark      int       // Marked: the mark's number
	Stack     mem.Stack // of the allocation, also for a free; of the caller for a mark and a section
}

// numbered reports whether an event of that action holds a number instead of bytes.
func actionNumbered(a mem.Action) bool {
	return a == mem.Marked || a == mem.SectionBegan || a == mem.SectionEnded
}
