package tracker

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// track is MemTracker.Track with the call stack of its caller.
func track(t *MemTracker, caller tables.StackID) *snapshot.Mark {
	m, queued, open := makeMark(t, caller)
	if !open {
		warnClosed(t, "Track")
	}
	t.report.Deliver(queued)
	if t.reportPath != "" && t.marks.loggedPath.CompareAndSwap(false, true) {
		t.report.Log.Info("gpumemtrack: the memory report is a file", "path", t.reportPath)
	}
	return m
}

// makeMark makes a mark and puts its block in the queue for the report's writer. The mark of a closed tracker has only the
// levels.
func makeMark(t *MemTracker, caller tables.StackID) (m *snapshot.Mark, queued *report.Block, open bool) {
	m = new(snapshot.Mark)
	if stack := t.stacks.Stack(caller); len(stack) > 0 {
		m.CallSite = stack[0]
	}
	now := t.clock.now() // the clock is not ours: no lock is held
	m.Levels = lockLevels(t, &t.marks.mu, t.mu)
	defer t.marks.mu.Unlock()
	now = t.history.Advance(now)
	m.Seq, m.Time = t.marks.last+1, t.start.Add(now)
	if t.closed.Load() {
		t.mu.Unlock()
		return m, nil, false
	}
	t.ledger.Buckets.Mark()
	t.history.Add(tables.EventEntry{Since: now, Action: mem.Marked, Stack: caller, Allocated: alloc.Bytes(m.Seq)})
	t.mu.Unlock()

	t.marks.last = m.Seq
	changes := takeChanges(t)
	var delta snapshot.DeltaBuilder
	delta.Grow(len(changes))
	for _, c := range changes {
		x := &c.Group.Tensor
		delta.Add(snapshot.Group{Kind: x.Kind, DType: x.DType, Shape: x.Shape, Memory: x.Memory}, t.stacks.Frame(c.Line), x.Tally(c.Count))
	}
	m.Delta = delta.Delta()
	t.marks.recent.add(m)
	return m, t.report.Add(m), true
}

// changesAtOnce is how many changes are taken while the lock is held.
const changesAtOnce = 256

// takeChanges returns what changed between the last two marks of the ledger. The caller holds t.marks.mu.
func takeChanges(t *MemTracker) (all []ledger.Change) {
	for more := true; more; {
		var some [changesAtOnce]ledger.Change
		var n int
		t.mu.Lock()
		n, more = t.ledger.Buckets.TakeChanges(some[:])
		t.mu.Unlock()
		all = slices.Grow(all, n)
		for _, c := range some[:n] {
			if c.Count != 0 {
				all = append(all, c)
			}
		}
	}
	return all
}
