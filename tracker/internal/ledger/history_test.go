package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
			h.Add(tables.EventEntry{Stack: 1, Ptr: 1, Section: uint16(i)})
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

// TestHistoryTakesWhatItNeeds: the ring has the next power of two of the events to keep, in chunks; none takes nothing.
func TestHistoryTakesWhatItNeeds(t *testing.T) {
	for events, chunks := range map[int]int{0: 0, 1: 1, eventsInChunk: 1, eventsInChunk + 1: 2, 2 * eventsInChunk: 2, 2*eventsInChunk + 1: 4, 5 * eventsInChunk: 8} {
		h := NewHistory(events)
		assert.Len(t, h.ring, chunks, "%d events", events)
		for i := range 3*events + 10 {
			h.Add(tables.EventEntry{Section: uint16(i)})
		}
		got, first := h.Read(new(counted))
		assert.Len(t, got, events)
		assert.EqualValues(t, 2*events+10, first)
		for i, e := range got {
			require.Equal(t, uint16(int(first)+i), e.Section)
		}
	}
}

// TestEventsKeepTheirTensors: each event has the tensor that it was added with, wherever in a chunk the latest stands, and
// whether the tensor's place in the history was kept.
func TestEventsKeepTheirTensors(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, kept := range []int{1, eventsInChunk, eventsInChunk + 1, 4 * eventsInChunk} {
		var tensors [700]struct {
			tables.Tensor
			at TensorIndex
		}
		h := NewHistory(kept)
		var want []*tables.Tensor
		for i := range 11 * eventsInChunk {
			x := &tensors[random.IntN(1+i%len(tensors))]
			switch random.IntN(4) {
			case 0:
				h.Add(tables.EventEntry{})
				want = append(want, nil)
			case 1:
				h.Add(tables.EventEntry{Tensor: &x.Tensor})
				want = append(want, &x.Tensor)
			default:
				h.Slot(&x.at, &x.Tensor)
				want = append(want, &x.Tensor)
			}
			if i%97 != 0 && i%eventsInChunk > 2 {
				continue
			}
			got, first := h.Read(new(counted))
			require.Len(t, got, min(kept, len(want)))
			for j, e := range got {
				require.Same(t, want[int(first)+j], e.Tensor, "event %d of %d, %d kept", int(first)+j, len(want), kept)
			}
		}
	}
}

// TestHistoryKeepsNoTensorTwice: a tensor whose place is kept is listed once in a chunk.
func TestHistoryKeepsNoTensorTwice(t *testing.T) {
	h := NewHistory(2 * eventsInChunk)
	var at TensorIndex
	for range 5*eventsInChunk + 7 {
		h.Slot(&at, new(tables.Tensor))
	}
	assert.Len(t, h.latest.tensors, 1)
	assert.Len(t, h.earlier, 1)
}

// TestClosedHistoryTakesEvents: it keeps none, whatever was kept of their tensors.
func TestClosedHistoryTakesEvents(t *testing.T) {
	for _, kept := range []int{0, 10} {
		h := NewHistory(kept)
		var at TensorIndex
		h.Slot(&at, new(tables.Tensor))
		h.Close()
		h.Slot(&at, new(tables.Tensor))
		for range 2 * eventsInChunk {
			h.Add(tables.EventEntry{Tensor: new(tables.Tensor)})
		}
		got, first := h.Read(new(counted))
		assert.Empty(t, got)
		assert.EqualValues(t, 2*eventsInChunk+2, first)
	}
}

// racing is a lock that others hold before us: each time, they add events.
type racing struct {
	h      *History
	events []int // for each time that the lock is taken
}

func (r *racing) Lock() {
	for range r.events[0] {
		r.h.Add(tables.EventEntry{Section: uint16(r.h.Next)})
	}
	r.events = r.events[1:]
}
func (r *racing) Unlock() {}

// TestReadLeavesOutWhatIsOverwritten: what Read returns is up to its beginning, without a gap, and as much as could be
// copied in time.
func TestReadLeavesOutWhatIsOverwritten(t *testing.T) {
	const kept = 2 * eventsInChunk
	for name, test := range map[string]struct {
		events []int
		first  int
	}{
		"none":                              {[]int{kept, 0, 0}, 0},
		"one":                               {[]int{kept, 1, 0}, 1},
		"a chunk":                           {[]int{kept, eventsInChunk, 0}, eventsInChunk},
		"what is copied already":            {[]int{kept, 0, eventsInChunk}, 0},
		"what is copied already, and more":  {[]int{kept, 0, eventsInChunk + 1}, eventsInChunk + 1},
		"all that was there":                {[]int{kept, kept, 0}, kept},
		"all, and more":                     {[]int{kept, 5 * kept, 0}, kept},
		"all, after the first chunk's copy": {[]int{kept, 0, kept}, kept},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory(kept)
			got, first := h.Read(&racing{&h, test.events})
			assert.EqualValues(t, test.first, first)
			assert.Len(t, got, kept-test.first)
			for i, e := range got {
				require.Equal(t, uint16(test.first+i), e.Section)
			}
		})
	}
}

// closing closes the history when its lock is taken the second time.
type closing struct {
	h *History
	n int
}

func (c *closing) Lock() {
	if c.n++; c.n == 2 {
		c.h.Close()
	}
}
func (c *closing) Unlock() {}

// TestReadOfAClosedHistory: it returns no event, and the number of the one that comes next.
func TestReadOfAClosedHistory(t *testing.T) {
	h := NewHistory(10)
	for range 5 {
		h.Add(tables.EventEntry{})
	}
	got, first := h.Read(&closing{h: &h})
	assert.Empty(t, got)
	assert.EqualValues(t, 5, first)
	h.Add(tables.EventEntry{})
	assert.EqualValues(t, 6, h.Next, "they are still numbered")
}

// TestTimeNeverGoesBack: a clock may.
func TestTimeNeverGoesBack(t *testing.T) {
	h := NewHistory(10)
	for _, at := range []time.Duration{5, 3, 7, 7, 1} {
		h.Add(tables.EventEntry{Since: at})
	}
	got, _ := h.Read(new(counted))
	var times []time.Duration
	for _, e := range got {
		times = append(times, e.Since)
	}
	assert.Equal(t, []time.Duration{5, 5, 7, 7, 7}, times)
	assert.Equal(t, time.Duration(7), h.Advance(6))
	assert.Equal(t, time.Duration(8), h.Advance(8))
}
