package export

import (
	"iter"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Levels are the amounts of memory that a history's events change.
type Levels struct {
	Allocated alloc.Bytes
	Reserved  alloc.Bytes
}

// After returns the levels after an event.
func (l Levels) After(e tracker.Event) Levels {
	switch e.Action {
	case tracker.Allocated, tracker.Registered, tracker.FreeFailed:
		l.Allocated += e.Allocated
	case tracker.Freed, tracker.Unregistered:
		l.Allocated -= e.Allocated
	case tracker.SegmentAllocated:
		l.Reserved += e.Allocated
	case tracker.SegmentFreed:
		l.Reserved -= e.Allocated
	}
	return l
}

// Events iterates over the history up to the snapshot, oldest first; over
// nothing if there is no history.
func (r Record) Events() iter.Seq[tracker.Event] {
	return func(yield func(tracker.Event) bool) {
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
	Time   time.Time // of the first event; the snapshot's if there is none
	Levels Levels
	// Segments says that the events tell of segments. If they do not, Reserved
	// is the snapshot's, and nothing is known of how it came to be.
	Segments bool
	Sections map[uint64]string // the sections that end in the history but begin before it, by span
}

// Begin goes through the events to find what was before them.
func (r Record) Begin() Beginning {
	b := Beginning{Time: r.Snapshot.Time, Sections: make(map[uint64]string)}
	var change Levels
	began := make(map[uint64]bool)
	first := true
	for e := range r.Events() {
		if first {
			b.Time, first = e.Time, false
		}
		change = change.After(e)
		switch e.Action {
		case tracker.SegmentAllocated, tracker.SegmentFreed:
			b.Segments = true
		case tracker.SectionBegan:
			began[e.Span] = true
		case tracker.SectionEnded:
			if !began[e.Span] {
				b.Sections[e.Span] = e.Section
			}
			delete(began, e.Span)
		}
	}
	// The device was asked a moment before the snapshot's last event.
	b.Levels = Levels{max(0, r.Snapshot.Allocated-change.Allocated), max(0, r.Snapshot.Reserved-change.Reserved)}
	return b
}
