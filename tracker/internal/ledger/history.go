package ledger

import (
	"math/bits"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// History is a ring of the latest events. It grows up to its bound, a chunk at a
// time, and then overwrites the oldest.
type History struct {
	max    int
	mask   uint64 // turns an event's number into its place in the ring
	ring   []*[eventsInChunk]tables.EventEntry
	Next   uint64            // events ever
	Latest time.Duration     // time of the last event: time never goes back
	none   tables.EventEntry // the slot of every event if none are kept
}

const eventsInChunk = 1 << 10

// NewHistory returns a history of the latest maxEvents events; 0 keeps none.
func NewHistory(maxEvents int) History {
	h := History{max: maxEvents}
	if maxEvents > 0 {
		places := max(eventsInChunk, 1<<bits.Len(uint(maxEvents-1)))
		h.mask = uint64(places - 1)
		h.ring = make([]*[eventsInChunk]tables.EventEntry, places/eventsInChunk)
	}
	return h
}

// Close forgets every event.
func (h *History) Close() { *h = History{Next: h.Next, Latest: h.Latest} }

// Slot returns the place of the next event, for the caller to fill. The caller writes it field by
// field, because copying an event built elsewhere makes the processor wait.
func (h *History) Slot() *tables.EventEntry {
	at := h.Next & h.mask
	h.Next++
	if h.max == 0 {
		return &h.none
	}
	chunk := h.ring[at/eventsInChunk]
	if chunk == nil {
		chunk = new([eventsInChunk]tables.EventEntry)
		h.ring[at/eventsInChunk] = chunk
	}
	return &chunk[at%eventsInChunk]
}

// Add appends an event. Its Since is a clock reading from before the lock was taken: see Advance.
func (h *History) Add(e tables.EventEntry) {
	e.Since = h.Advance(e.Since)
	*h.Slot() = e
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
			part := h.ring[at&h.mask/eventsInChunk][at%eventsInChunk:]
			part = part[:min(uint64(len(part)), end-at)]
			events = append(events, part...)
			at += uint64(len(part))
		}
		lock.Unlock()
	}
	return events, min(first, end)
}
