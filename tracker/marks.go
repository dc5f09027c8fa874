package tracker

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// marker makes the marks of a tracker, and keeps the latest.
type marker struct {
	t          *MemTracker
	mu         sync.Mutex // one Track at a time; taken before the tracker's lock
	last       int        // number of the last mark; guarded by mu
	recent     recentMarks
	loggedPath atomic.Bool // the Logger has the path of the report's file
}

// track is MemTracker.Track with the call stack of its caller.
func (k *marker) track(caller tables.StackID) *snapshot.Mark {
	t := k.t
	m, queued, open := k.mark(caller)
	if !open {
		t.warnClosed("Track")
	}
	t.report.Settle(queued)
	if t.reportPath != "" && k.loggedPath.CompareAndSwap(false, true) {
		t.report.Log.Info("gpumemtrack: the memory report is a file", "path", t.reportPath)
	}
	return m
}

// mark makes a mark and puts its block in the queue for the report's writer. The mark of a closed tracker has only the
// levels.
func (k *marker) mark(caller tables.StackID) (m *snapshot.Mark, queued *report.Block, open bool) {
	t := k.t
	m = new(snapshot.Mark)
	if stack := t.stacks.Stack(caller); len(stack) > 0 {
		m.CallSite = stack[0]
	}
	now := t.now() // the clock is not ours: no lock is held
	m.Levels = lockLevels(t, &k.mu, t.mu)
	defer k.mu.Unlock()
	now = t.history.Advance(now)
	m.Seq, m.Time = k.last+1, t.start.Add(now)
	if t.closed.Load() {
		t.mu.Unlock()
		return m, nil, false
	}
	t.ledger.Buckets.Mark()
	t.history.Add(tables.EventEntry{Since: now, Action: mem.Marked, Stack: caller, Allocated: alloc.Bytes(m.Seq)})
	t.mu.Unlock()

	k.last = m.Seq
	changes := takeChanges(t)
	var delta snapshot.DeltaBuilder
	delta.Grow(len(changes))
	for _, c := range changes {
		x := &c.Group.Tensor
		delta.Add(snapshot.Group{Kind: x.Kind, DType: x.DType, Shape: x.Shape, Memory: x.Memory}, t.stacks.Frame(c.Line), x.Tally(c.Count))
	}
	m.Delta = delta.Delta()
	k.recent.add(m)
	return m, t.report.Add(m), true
}

// changesAtOnce is how many changes are taken while the lock is held.
const changesAtOnce = 256

// takeChanges returns what changed between the last two marks of the ledger. The caller holds the lock of the marker.
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

// recentMarks keeps the latest marks. Track only adds a mark and wakes the readers that wait, so a slow reader delays
// no Track, and misses marks.
type recentMarks struct {
	max int

	mu     sync.Mutex
	kept   []*snapshot.Mark // oldest first
	added  chan struct{}    // closed when a mark is added; nil while no reader waits
	closed bool
}

const defaultMaxMarks = 128

func (r *recentMarks) add(m *snapshot.Mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.max == 0 || r.closed {
		return
	}
	if len(r.kept) == r.max {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, m)
	r.wake()
}

func (r *recentMarks) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept, r.closed = nil, true
	r.wake()
}

// wake wakes all readers that wait for a mark. The caller holds r.mu.
func (r *recentMarks) wake() {
	if r.added != nil {
		close(r.added)
		r.added = nil
	}
}

// all returns the marks kept, oldest first. They are shared.
func (r *recentMarks) all() []*snapshot.Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// after returns the oldest kept mark with a number above seq, or a channel that is closed when a mark is added.
func (r *recentMarks) after(seq int) (*snapshot.Mark, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, fmt.Errorf("wait for a mark: tracker: %w", alloc.ErrClosed)
	}
	for _, m := range r.kept {
		if m.Seq > seq {
			return m, nil, nil
		}
	}
	if r.added == nil {
		r.added = make(chan struct{})
	}
	return nil, r.added, nil
}
