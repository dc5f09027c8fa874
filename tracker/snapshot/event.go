package snapshot

import (
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Action says what an Event is.
type Action uint8

// The actions.
const (
	// Allocated: a buffer was allocated.
	Allocated Action = iota + 1
	// Freed: a buffer left the ledger; its memory is given back right after that.
	Freed
	// FreeFailed: giving the memory back failed, and the buffer is live again.
	FreeFailed
	// Lost: the Go collector found that the program can no longer free the buffer.
	Lost
	// Registered and Unregistered are Allocated and Freed for memory of other code.
	Registered
	Unregistered
	// OutOfMemory: an allocation of this size failed for lack of memory.
	OutOfMemory
	// SegmentAllocated and SegmentFreed: the cache took memory from the driver
	// or gave it back.
	SegmentAllocated
	SegmentFreed
	// Marked: a Track.
	Marked
	// SectionBegan and SectionEnded: a Section began or ended.
	SectionBegan
	SectionEnded
	// FreeRequested: the program freed a buffer that work on another stream may still
	// use; Freed follows when that is done. PyTorch's histories have it.
	FreeRequested
	// FreeCompleted: the work on other streams is done that used a buffer which was Freed before. Only now
	// its memory can be used again. A tracker's histories have it.
	FreeCompleted
	// Retried: the driver refused a segment of this size. The cache gives back what it can, as the
	// SegmentFreed that follow say, and asks again. A tracker's histories have it.
	Retried
)

var actionNames = [...]string{
	Allocated: "alloc", Freed: "free", FreeFailed: "free_failed", Lost: "lost",
	Registered: "register", Unregistered: "unregister", OutOfMemory: "oom",
	SegmentAllocated: "segment_alloc", SegmentFreed: "segment_free", Marked: "mark",
	SectionBegan: "section_begin", SectionEnded: "section_end",
	FreeRequested: "free_requested", FreeCompleted: "free_completed", Retried: "retry",
}

// String returns the action's name in the JSON form.
func (a Action) String() string {
	if int(a) < len(actionNames) && a > 0 {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// MarshalText writes the action's name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads a name that String writes.
func (a *Action) UnmarshalText(text []byte) error {
	for i, name := range actionNames {
		if name != "" && name == string(text) {
			*a = Action(i)
			return nil
		}
	}
	return fmt.Errorf("parse action %q: not an action of a history", text)
}

// Event is one thing that happened to device memory. Fields that do not belong
// to its action are zero.
type Event struct {
	Seq       uint64 // position in the whole history, from 0
	Time      time.Time
	Action    Action
	Ptr       alloc.Ptr
	Requested alloc.Bytes
	Allocated alloc.Bytes
	Kind      Kind
	Shape     alloc.Shape // shared: do not write
	DType     alloc.DType
	Memory    alloc.Memory
	Section   string // its path; of a free, the section of the allocation
	Stream    alloc.Stream
	Span      uint64 // SectionBegan and SectionEnded: the same number for both of one section
	Mark      int    // Marked: the mark's number
	Stack     Stack  // of the allocation, also for a free; of the caller for a mark and a section
}

// EventEntry is an Event as a source stores it, in 40 bytes. It refers to the tables of its
// history.
type EventEntry struct {
	Since     time.Duration // since the history's start
	Ptr       alloc.Ptr
	Allocated alloc.Bytes // or the size that was refused, the mark's number, the section's span
	Tensor    *Tensor     // nil where there is none, or it is not known
	Stack     StackID
	Section   uint16
	Action    Action
	Stream    uint8
}

// numbered reports whether an event of that action holds a number instead of bytes.
func (a Action) numbered() bool { return a == Marked || a == SectionBegan || a == SectionEnded }
