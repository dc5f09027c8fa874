package tracker

import (
	"fmt"
	"iter"
	"math/bits"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Action is what an Event tells.
type Action uint8

// The actions.
const (
	// Allocated: a buffer came to life.
	Allocated Action = iota + 1
	// Freed: a buffer left the ledger; its memory is given back right after.
	Freed
	// FreeFailed: giving the memory back failed, and the buffer is live again.
	FreeFailed
	// Lost: the Go collector found that nobody can free the buffer any more.
	Lost
	// Registered and Unregistered are Allocated and Freed for memory of others.
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
	// SectionBegan and SectionEnded: a Section opened and closed.
	SectionBegan
	SectionEnded
)

var actionNames = [...]string{
	Allocated: "alloc", Freed: "free", FreeFailed: "free_failed", Lost: "lost",
	Registered: "register", Unregistered: "unregister", OutOfMemory: "oom",
	SegmentAllocated: "segment_alloc", SegmentFreed: "segment_free", Marked: "mark",
	SectionBegan: "section_begin", SectionEnded: "section_end",
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
	Section   string // its path; of a free, the section of the allocation
	Span      uint64 // SectionBegan and SectionEnded: the same number for both of one section
	Mark      int    // Marked: the mark's number
	Stack     Stack  // of the allocation, also for a free; of the caller for a mark and a section
}

// event is an Event as the ring keeps it, 40 bytes.
type event struct {
	since     time.Duration // since the tracker's start
	ptr       alloc.Ptr
	allocated alloc.Bytes // or the size asked for, the mark's number, the section's span
	group     *group
	stack     callstack.ID
	section   uint16
	action    Action
}

// history is a ring of the latest events. It grows up to its bound, a chunk at a
// time, and then overwrites the oldest.
type history struct {
	max    int
	mask   uint64 // of an event's number, to its place in the ring
	ring   []*[eventsInChunk]event
	next   uint64        // events ever
	latest time.Duration // of the last event: time does not go back
	none   event         // where events go of which none are kept
}

const (
	eventsInChunk = 1 << 10
	maxSections   = 1 << 16 // that events can tell apart; a tracker has maxPaths at most
)

func newHistory(maxEvents int) history {
	h := history{max: maxEvents}
	if maxEvents > 0 {
		places := max(eventsInChunk, 1<<bits.Len(uint(maxEvents-1)))
		h.mask = uint64(places - 1)
		h.ring = make([]*[eventsInChunk]event, places/eventsInChunk)
	}
	return h
}

// close forgets every event.
func (h *history) close() { *h = history{next: h.next, latest: h.latest} }

// slot returns the room for the next event, which the caller fills. It is
// written field by field: the processor waits for an event that is built
// elsewhere and copied.
func (h *history) slot() *event {
	at := h.next & h.mask
	h.next++
	if h.max == 0 {
		return &h.none
	}
	chunk := h.ring[at/eventsInChunk]
	if chunk == nil {
		chunk = new([eventsInChunk]event)
		h.ring[at/eventsInChunk] = chunk
	}
	return &chunk[at%eventsInChunk]
}

// add appends an event at a time that moment gave.
func (h *history) add(e event) {
	e.since = h.moment(e.since)
	*h.slot() = e
}

// moment returns the time of an event that happens now, of which the clock was read
// before the lock was taken: no earlier than the event before.
func (h *history) moment(now time.Duration) time.Duration {
	h.latest = max(h.latest, now)
	return h.latest
}

// eventsAtOnce is how many are copied without a pause.
const eventsAtOnce = 4 * eventsInChunk

// read copies the events kept, oldest first, and returns the number of the
// first. Those that are overwritten before they are copied are left out.
func (h *history) read(lock sync.Locker) (events []event, first uint64) {
	lock.Lock()
	end := h.next
	first = end - min(end, uint64(h.max))
	lock.Unlock()
	events = make([]event, 0, end-first)
	for at := first; at < end; {
		lock.Lock()
		if len(h.ring) == 0 {
			lock.Unlock()
			return nil, end // closed meanwhile
		}
		if kept := h.next - min(h.next, h.mask+1); at < kept {
			at, first, events = kept, kept, events[:0]
		}
		for stop := min(end, at+eventsAtOnce); at < stop; {
			chunk := h.ring[at&h.mask/eventsInChunk]
			part := chunk[at%eventsInChunk:]
			part = part[:min(uint64(len(part)), stop-at)]
			events = append(events, part...)
			at += uint64(len(part))
		}
		lock.Unlock()
	}
	return events, min(first, end)
}

// History is a copy of the latest events at an instant.
type History struct {
	events   []event
	first    uint64
	start    time.Time
	stacks   stackSource
	sections []string
}

// Dropped returns how many events happened before the oldest that is kept.
func (h *History) Dropped() uint64 { return h.first }

// Len returns the number of events kept.
func (h *History) Len() int { return len(h.events) }

// Events iterates over the events, oldest first. It holds no lock.
func (h *History) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for i, e := range h.events {
			if !yield(h.public(h.first+uint64(i), e)) {
				return
			}
		}
	}
}

func (h *History) public(seq uint64, e event) Event {
	out := Event{
		Seq:     seq,
		Time:    h.start.Add(e.since),
		Action:  e.action,
		Ptr:     e.ptr,
		Section: h.sections[e.section],
		Stack:   h.stacks.resolve(e.stack),
	}
	switch e.action {
	case Marked:
		out.Mark = int(e.allocated)
	case SectionBegan, SectionEnded:
		out.Span = uint64(e.allocated)
	case OutOfMemory:
		out.Requested = e.allocated
	default:
		out.Allocated = e.allocated
	}
	if g := e.group; g != nil {
		out.Kind, out.Shape, out.DType, out.Requested = g.kind, g.shape, g.dtype, g.each
	}
	return out
}
