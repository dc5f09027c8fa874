package tracker

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Track makes a mark: it compares the live buffers with those at the previous mark, appends
// the difference to the report, and returns it when the report is written. An error of writing
// the report does not stop the program: see Err.
//
// Its cost depends on the groups that changed since the previous mark, not on the live
// buffers.
func (t *MemTracker) Track() *snapshot.Mark {
	return t.track(tables.StackID(t.stacks.Table.Capture(1)))
}

func (t *MemTracker) track(caller tables.StackID) *snapshot.Mark {
	m, queued, open := t.mark(caller)
	if !open {
		t.usedAfterClose("Track")
	}
	t.report.Settle(queued)
	if t.reportPath != "" && t.toldReport.CompareAndSwap(false, true) {
		t.report.Log.Info("gpumemtrack: the memory report is a file", "path", t.reportPath)
	}
	return m
}

// mark makes a mark and puts its block in the queue for the report's writer. Of a
// tracker that is closed it has only the levels.
func (t *MemTracker) mark(caller tables.StackID) (m *snapshot.Mark, queued *report.Block, open bool) {
	m = new(snapshot.Mark)
	if stack := t.stacks.Stack(caller); len(stack) > 0 {
		m.CallSite = stack[0]
	}
	now := t.now() // the clock is not ours: no lock is held
	m.Levels = t.lockLevels(&t.marking, t.mu)
	defer t.marking.Unlock()
	now = t.history.Moment(now)
	m.Seq, m.Time = t.marks+1, t.start.Add(now)
	if t.closed.Load() {
		t.mu.Unlock()
		return m, nil, false
	}
	t.ledger.Cells.Cut()
	t.history.Add(tables.EventEntry{Since: now, Action: mem.Marked, Stack: caller, Allocated: alloc.Bytes(m.Seq)})
	t.mu.Unlock()

	t.marks = m.Seq
	changes := t.changes()
	b := tables.NewSums(len(changes))
	for _, c := range changes {
		g, site := c.Group, t.stacks.Frame(c.Line)
		b.Add(&g.Tensor, site, g.Tally(c.Count))
	}
	tables.SetDelta(m, &b)
	t.recent.add(m)
	return m, t.report.Add(m), true
}

// WaitMark returns the oldest kept mark whose Seq is above after, and waits for one if there
// is none. It never delays a Track: a caller that is too slow misses marks, which it can see
// from Seq. The error is the context's, or alloc.ErrClosed when the tracker is closed.
func (t *MemTracker) WaitMark(ctx context.Context, after int) (*snapshot.Mark, error) {
	for {
		m, added, err := t.recent.after(after)
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-added:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a mark: %w", ctx.Err())
		}
	}
}

// changesAtOnce is how many are told of without a pause.
const changesAtOnce = 256

// changes returns what changed up to the mark that was cut last. The caller holds the
// marking lock.
func (t *MemTracker) changes() (all []ledger.CellChange) {
	for more := true; more; {
		var some [changesAtOnce]ledger.CellChange
		var n int
		t.mu.Lock()
		n, more = t.ledger.Cells.Tell(some[:])
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
