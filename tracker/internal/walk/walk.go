// Package walk knows how each event of a history changes a device's memory. All code that goes
// through a history uses it: to rewind it, draw it, write it in another format, or replay it.
//
// Each event has one [Effect], which [Of] returns; [Change] returns how it changes the [Levels]. A
// walk forwards begins with the levels of a [Beginning], a walk backwards keeps a [Reverse]. [Spans]
// are the segments at one place in either walk.
//
// The package never asks a device, and it draws and writes nothing.
package walk

import (
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoSnapshot is the error of writing a dump without a snapshot.
var ErrNoSnapshot = errors.New("the dump has no snapshot")

// Effect says what an event does to the memory at its address.
type Effect uint8

// The effects. A buffer begins, ends, and its memory may be pending until that is completed.
const (
	None     Effect = iota
	Begin           // a buffer is live from here on: it was allocated or registered, or its free failed
	End             // it is live no longer. Its memory is free, or pending if a Complete follows
	Complete        // pending memory can be used again
	Grow            // the driver gave a segment, or a part of an expandable one
	Shrink          // and took it back
)

var effects = [256]Effect{
	mem.Allocated: Begin, mem.Registered: Begin, mem.FreeFailed: Begin,
	mem.Freed: End, mem.Unregistered: End,
	mem.FreeCompleted:    Complete,
	mem.SegmentAllocated: Grow,
	mem.SegmentFreed:     Shrink,
}

// Of returns the effect of an event. One in host memory has the same effects there.
func Of(a mem.Action) Effect { return effects[a] }

// Levels are the amounts of device memory that events change.
type Levels struct {
	Live      alloc.Bytes // requested bytes of the live buffers
	Allocated alloc.Bytes
	Reserved  alloc.Bytes // bytes in segments
}

// Add returns the levels after a change.
func (l Levels) Add(change Levels) Levels {
	return Levels{l.Live + change.Live, l.Allocated + change.Allocated, l.Reserved + change.Reserved}
}

// Change returns what an event adds to the levels. Host memory adds nothing.
func Change(e *snapshot.Event) Levels {
	if e.Memory.OnHost() {
		return Levels{}
	}
	switch Of(e.Action) {
	case Begin:
		return Levels{Live: e.Requested, Allocated: e.Allocated}
	case End:
		return Levels{Live: -e.Requested, Allocated: -e.Allocated}
	case Grow:
		return Levels{Reserved: e.Allocated}
	case Shrink:
		return Levels{Reserved: -e.Allocated}
	}
	return Levels{}
}

// Beginning is the state before the first event of a dump.
type Beginning struct {
	Levels
	Time time.Time // time of the first event; the snapshot's time if there are no events
	// Segments says that the events include segments. If they do not, Reserved
	// is the snapshot's, and nothing is known of how it came to be.
	Segments bool
	Sections map[uint64]string // sections that end in the history but began before it, by span
}

// BeginningOf goes through the events to find what was before them: what the snapshot has, less all changes.
func BeginningOf(r *snapshot.Dump) Beginning {
	b := Beginning{Time: r.Snapshot.Time, Sections: make(map[uint64]string)}
	var all Levels
	began := make(map[uint64]bool)
	first := true
	for e := range r.Events() {
		if first {
			b.Time, first = e.Time, false
		}
		change := Change(&e)
		all = all.Add(change)
		b.Segments = b.Segments || change.Reserved != 0
		switch e.Action {
		case mem.SectionBegan:
			began[e.Span] = true
		case mem.SectionEnded:
			if !began[e.Span] {
				b.Sections[e.Span] = e.Section
			}
			delete(began, e.Span)
		}
	}
	// The device was asked a moment before the snapshot's last event, so a level may come out negative.
	s := r.Snapshot
	b.Levels = Levels{max(0, s.Live.Bytes-all.Live), max(0, s.Allocated-all.Allocated), max(0, s.Reserved-all.Reserved)}
	return b
}

// Events returns the events of a dump up to its snapshot, as their source stores them, and the
// number of the first one. If there are none, that is the snapshot's number.
func Events(d *snapshot.Dump) (entries []tables.EventEntry, first uint64) {
	at := d.Snapshot.Events
	h := tables.OfHistory(&d.History)
	if h.First >= at || len(h.Events) == 0 {
		return nil, at
	}
	return h.Events[:min(uint64(len(h.Events)), at-h.First)], h.First
}

// backwardAtOnce is how many events Backward makes at a time.
const backwardAtOnce = 256

// Backward iterates over the events of a dump up to its snapshot, latest first.
func Backward(d *snapshot.Dump) iter.Seq[snapshot.Event] {
	return func(yield func(snapshot.Event) bool) {
		entries, first := Events(d)
		for len(entries) > 0 {
			from := max(0, len(entries)-backwardAtOnce)
			part := &snapshot.Dump{Snapshot: d.Snapshot, History: d.History}
			its := tables.OfHistory(&part.History)
			its.Events, its.First = entries[from:], first+uint64(from)
			for _, e := range slices.Backward(slices.Collect(part.Events())) {
				if !yield(e) {
					return
				}
			}
			entries = entries[:from]
		}
	}
}
