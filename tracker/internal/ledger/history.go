package ledger

import (
	"math/bits"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// History is a ring of the latest events. It grows up to its bound, a chunk at a
// time, and then overwrites the oldest.
//
// Events have no pointers, so that the Go collector need not read them. Each chunk lists the tensors of its events.
type History struct {
	max     int
	mask    uint64 // turns an event's number into its place in the ring
	ring    []eventChunk
	latest  *eventChunk           // the chunk of the last event; nil if there is none
	slots   *[eventsInChunk]Event // its events
	number  uint64                // of the latest chunk, counted from 1; 0 if there is none
	earlier []*tables.Tensor      // of those events of the latest chunk that are still to be overwritten
	Next    uint64                // events ever
	Latest  time.Duration         // time of the last event: time never goes back
	none    Event                 // the slot of every event if none are kept
}

// eventChunk is a part of the ring.
type eventChunk struct {
	events  *[eventsInChunk]Event // nil until the first
	tensors []*tables.Tensor      // of the events since the ring last came to this chunk
}

// Event is a tables.EventEntry without pointers. Slot sets its tensor.
type Event struct {
	Since     time.Duration
	Ptr       alloc.Ptr
	Allocated alloc.Bytes
	Stack     tables.StackID
	Section   uint16
	tensor    uint16 // index in its chunk's tensors, plus one; 0 for none
	Action    mem.Action
	Stream    uint8
}

// TensorIndex is where the history has a tensor. Whoever keeps one with a tensor that does not change spares the history
// to list it for each event. The zero TensorIndex is nowhere.
type TensorIndex struct {
	chunk  uint64 // History.number, when it was listed
	tensor uint16 // as in Event
}

const eventsInChunk = 1 << 10

// NewHistory returns a history of the latest maxEvents events; 0 keeps none.
func NewHistory(maxEvents int) History {
	h := History{max: maxEvents}
	if maxEvents > 0 {
		places := max(eventsInChunk, 1<<bits.Len(uint(maxEvents-1)))
		h.mask = uint64(places - 1)
		h.ring = make([]eventChunk, places/eventsInChunk)
	}
	return h
}

// Close forgets every event.
func (h *History) Close() { *h = History{Next: h.Next, Latest: h.Latest} }

// Slot returns the place of the next event, which is about a tensor, for the caller to fill. The caller writes it field by
// field, because copying an event built elsewhere makes the processor wait.
func (h *History) Slot(at *TensorIndex, x *tables.Tensor) *Event {
	e := h.slot()
	if at.chunk != h.number {
		h.list(at, x)
	}
	e.tensor = at.tensor
	return e
}

// slot returns the place of the next event.
func (h *History) slot() *Event {
	i := h.Next % eventsInChunk
	if i == 0 && h.max != 0 {
		h.begin()
	}
	h.Next++
	if h.slots == nil {
		return &h.none
	}
	return &h.slots[i]
}

// begin goes on to the chunk of the next event.
func (h *History) begin() {
	h.latest = &h.ring[h.Next&h.mask/eventsInChunk]
	if h.latest.events == nil {
		h.latest.events = new([eventsInChunk]Event)
	}
	h.slots = h.latest.events
	clear(h.earlier)
	h.latest.tensors, h.earlier = h.earlier[:0], h.latest.tensors
	h.number++
}

// list enters a tensor in the latest chunk.
func (h *History) list(at *TensorIndex, x *tables.Tensor) {
	if h.latest == nil {
		return
	}
	h.latest.tensors = append(h.latest.tensors, x)
	at.chunk, at.tensor = h.number, uint16(len(h.latest.tensors))
}

// Add appends an event. Its Since is a clock reading from before the lock was taken: see Advance.
func (h *History) Add(e tables.EventEntry) {
	to, at := h.slot(), TensorIndex{}
	if e.Tensor != nil {
		h.list(&at, e.Tensor)
	}
	*to = Event{h.Advance(e.Since), e.Ptr, e.Allocated, e.Stack, e.Section, at.tensor, e.Action, e.Stream}
}

// Advance returns the time of an event that happens now, given a clock reading from before the lock
// was taken. The result is never earlier than the event before.
func (h *History) Advance(now time.Duration) time.Duration {
	h.Latest = max(h.Latest, now)
	return h.Latest
}

// Read copies the events kept, oldest first, and returns the number of the
// first. Those that are overwritten before they are copied are left out. It holds the lock
// for a chunk of events at a time.
func (h *History) Read(lock sync.Locker) (events []tables.EventEntry, first uint64) {
	lock.Lock()
	end := h.Next
	first = end - min(end, uint64(h.max))
	lock.Unlock()
	events = make([]tables.EventEntry, 0, end-first)
	for at := first; at < end; {
		lock.Lock()
		if len(h.ring) == 0 {
			lock.Unlock()
			return nil, end // closed meanwhile
		}
		if kept := h.Next - min(h.Next, h.mask+1); at < kept {
			at, first, events = kept, kept, events[:0]
		}
		if at < end {
			n := min(eventsInChunk-at%eventsInChunk, end-at)
			events = h.appendEntries(events, at, n)
			at += n
		}
		lock.Unlock()
	}
	return events, min(first, end)
}

// appendEntries appends the entries of n events that are kept, all of one chunk, from number first on.
func (h *History) appendEntries(entries []tables.EventEntry, first, n uint64) []tables.EventEntry {
	c := &h.ring[first&h.mask/eventsInChunk]
	tensors := c.tensors
	if c == h.latest && first < (h.Next-1)/eventsInChunk*eventsInChunk {
		tensors = h.earlier
	}
	for _, e := range c.events[first%eventsInChunk:][:n] {
		entry := tables.EventEntry{
			Since: e.Since, Ptr: e.Ptr, Allocated: e.Allocated,
			Stack: e.Stack, Section: e.Section, Action: e.Action, Stream: e.Stream,
		}
		if e.tensor != 0 {
			entry.Tensor = tensors[e.tensor-1]
		}
		entries = append(entries, entry)
	}
	return entries
}
