package mem

import (
	"fmt"
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
	// Unreachable: the Go collector found that the program can no longer free the buffer.
	Unreachable
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
	// FreeCompleted: a buffer was Freed before, and now the work on other streams that used it is
	// done. Only now can its memory be used again. A tracker's histories have it.
	FreeCompleted
	// Retried: the driver refused a segment of this size. The cache then gives back what it can,
	// which the following SegmentFreed events show, and asks again. Only a tracker's history has
	// this event.
	Retried
)

var actionNames = [...]string{
	Allocated: "alloc", Freed: "free", FreeFailed: "free_failed", Unreachable: "unreachable",
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

// UnmarshalText reads a name that String writes, and "lost", as files from before the first release name [Unreachable]. Any
// other name is an error.
func (a *Action) UnmarshalText(text []byte) error {
	if string(text) == "lost" {
		*a = Unreachable
		return nil
	}
	for i, name := range actionNames {
		if name != "" && name == string(text) {
			*a = Action(i)
			return nil
		}
	}
	return fmt.Errorf("parse action %q: not an action of a history", text)
}
