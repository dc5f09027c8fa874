package snapshot

import (
	"iter"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Held is the amounts of device memory that a history's events change.
type Held struct {
	Allocated alloc.Bytes
	Reserved  alloc.Bytes
}

// After returns the levels after an event. Those of host memory change nothing.
func (l Held) After(e Event) Held {
	if e.Memory.OnHost() {
		return l
	}
	switch e.Action {
	case mem.Allocated, mem.Registered, mem.FreeFailed:
		l.Allocated += e.Allocated
	case mem.Freed, mem.Unregistered:
		l.Allocated -= e.Allocated
	case mem.SegmentAllocated:
		l.Reserved += e.Allocated
	case mem.SegmentFreed:
		l.Reserved -= e.Allocated
	}
	return l
}

// Events iterates over the history up to the snapshot, oldest first; over
// nothing if there is no history.
func (r *Record) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		if r.History == nil {
			return
		}
		for e := range r.History.Events() {
			if e.Seq >= r.Snapshot.Events || !yield(e) {
				return
			}
		}
	}
}

// Beginning is the state before the first event of a Record.
type Beginning struct {
	Time time.Time // of the first event; the snapshot's if there is none
	Held Held
	// Segments says that the events include segments. If they do not, Reserved
	// is the snapshot's, and nothing is known of how it came to be.
	Segments bool
	Sections map[uint64]string // the sections that end in the history but begin before it, by span
}

// Begin goes through the events to find what was before them.
func (r *Record) Begin() Beginning {
	b := Beginning{Time: r.Snapshot.Time, Sections: make(map[uint64]string)}
	var change Held
	began := make(map[uint64]bool)
	first := true
	for e := range r.Events() {
		if first {
			b.Time, first = e.Time, false
		}
		change = change.After(e)
		switch e.Action {
		case mem.SegmentAllocated, mem.SegmentFreed:
			b.Segments = true
		case mem.SectionBegan:
			began[e.Span] = true
		case mem.SectionEnded:
			if !began[e.Span] {
				b.Sections[e.Span] = e.Section
			}
			delete(began, e.Span)
		}
	}
	// The device was asked a moment before the snapshot's last event.
	b.Held = Held{max(0, r.Snapshot.Allocated-change.Allocated), max(0, r.Snapshot.Reserved-change.Reserved)}
	return b
}
