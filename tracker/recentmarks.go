package tracker

import (
	"fmt"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

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
