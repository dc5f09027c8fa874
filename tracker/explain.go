package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Explain says why the tracker's cache holds more memory than the program requested, and what
// keeps that memory from being used or given back. It costs as much as a Snapshot. Package
// tracker/replay computes from a Record what other settings would have saved.
func (t *MemTracker) Explain() *snapshot.Explanation { return t.Snapshot().Explain() }

// maxCheap is how many buffers, call sites and blocks a failed allocation looks through to
// explain itself: a millisecond or two of work.
const maxCheap = 10_000

// stuck returns the lines that keep most of what is cached, or none if that is not cheap.
func (t *MemTracker) stuck(n int) []snapshot.PinLine {
	if t.cache == nil || t.closed.Load() {
		return nil
	}
	t.mu.Lock()
	stats := t.locked.Stats()
	cheap := t.ledger.Cells.Len() <= maxCheap && stats.Allocated.Count.Current+stats.Inactive.Count.Current <= maxCheap
	t.mu.Unlock()
	if !cheap {
		return nil
	}
	lines := t.Explain().Lines
	return lines[:min(n, len(lines))]
}
