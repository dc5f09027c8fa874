package tracker

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// growing returns copies of the series that grow, and when they began.
func (t *MemTracker) growing() (found map[snapshot.Frame]*snapshot.Series, began time.Duration) {
	t.marking.Lock()
	defer t.marking.Unlock()
	return t.growth.Growing()
}

// lifetimes returns a copy of what is known of each line's freed buffers, taken some
// hundred lines at a time.
func (t *MemTracker) lifetimes() map[snapshot.Frame]*snapshot.Lifetimes {
	const atOnce = 256
	lines := make(map[snapshot.Frame]*snapshot.Lifetimes)
	var some [atOnce]snapshot.Lifetimes
	for first := 0; ; first += atOnce {
		t.mu.Lock()
		freed := t.ledger.Freed[min(first, len(t.ledger.Freed)):]
		freed = freed[:min(atOnce, len(freed))]
		clear(some[:])
		for i, l := range freed {
			if l != nil {
				some[i] = *l
			}
		}
		t.mu.Unlock()
		if len(freed) == 0 {
			return lines
		}
		for i := range freed {
			if !some[i].IsZero() {
				own := some[i]
				lines[t.stacks.Frame(ledger.LineID(first+i))] = &own
			}
		}
	}
}
