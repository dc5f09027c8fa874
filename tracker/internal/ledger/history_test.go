package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// counted is a lock that counts how often it was taken.
type counted struct{ holds int }

func (c *counted) Lock()   { c.holds++ }
func (c *counted) Unlock() {}

// TestReadHoldsTheLockForAChunkOfEvents: however many there are, and wherever in a chunk the
// oldest stands.
func TestReadHoldsTheLockForAChunkOfEvents(t *testing.T) {
	for _, test := range []struct{ events, chunks int }{{0, 0}, {1, 1}, {eventsInChunk, 1}, {8 * eventsInChunk, 8}, {100*eventsInChunk + 5, 9}} {
		h := NewHistory(8 * eventsInChunk)
		for i := range test.events {
			*h.Slot() = tables.EventEntry{Stack: 1, Ptr: 1, Section: uint16(i)}
		}
		var lock counted
		events, first := h.Read(&lock)
		assert.Len(t, events, min(test.events, 8*eventsInChunk))
		assert.EqualValues(t, test.events-len(events), first)
		for i, e := range events {
			assert.Equal(t, uint16(int(first)+i), e.Section)
		}
		assert.Equal(t, 1+test.chunks, lock.holds, "of %d events", test.events)
	}
}
