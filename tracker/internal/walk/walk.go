// Package walk knows what the events of a history do to a device's memory, for everybody who goes through
// one: to rewind it, to draw it, to write it in another format, to run it again.
//
// An event has one [Effect]. [Of] tells it, and [Change] by how much the [Levels] change. Who goes forwards needs
// the levels before the first event: they are those at the end, less all changes. Who goes backwards
// keeps a [Back]. [Spans] are the segments at a place in either direction.
//
// It never reads a file, a snapshot or a clock: its user has the events.
package walk

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Effect is what an event does to memory at its address.
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

// Sign returns the change of the number of live buffers: 1, -1 or 0.
func (e Effect) Sign() int64 {
	switch e {
	case Begin:
		return 1
	case End:
		return -1
	}
	return 0
}

// Levels are the amounts of device memory that events change.
type Levels struct {
	Live      alloc.Bytes // requested, of the live buffers
	Allocated alloc.Bytes
	Reserved  alloc.Bytes // in segments
}

// Change returns what an event adds to the levels. Host memory adds nothing.
func Change(a mem.Action, in alloc.Memory, requested, allocated alloc.Bytes) Levels {
	if in.OnHost() {
		return Levels{}
	}
	switch Of(a) {
	case Begin:
		return Levels{Live: requested, Allocated: allocated}
	case End:
		return Levels{Live: -requested, Allocated: -allocated}
	case Grow:
		return Levels{Reserved: allocated}
	case Shrink:
		return Levels{Reserved: -allocated}
	}
	return Levels{}
}

// Add returns the levels after a change.
func (l Levels) Add(change Levels) Levels {
	return Levels{l.Live + change.Live, l.Allocated + change.Allocated, l.Reserved + change.Reserved}
}

// Before returns the levels before a change. They are not negative: the device was asked a moment
// before the snapshot's last event.
func (l Levels) Before(change Levels) Levels {
	return Levels{max(0, l.Live-change.Live), max(0, l.Allocated-change.Allocated), max(0, l.Reserved-change.Reserved)}
}
