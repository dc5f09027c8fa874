package tracker

import (
	"fmt"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// recentMarks keeps the latest marks. Readers come and take them: Track only
// adds one and wakes who waits, so that a slow reader holds up nobody, and misses marks.
type recentMarks struct {
	max int

	mu     sync.Mutex
	kept   []*Mark       // oldest first
	added  chan struct{} // closed when a mark is added; nil while nobody waits
	closed bool
}

const defaultMaxMarks = 128

func (r *recentMarks) add(m *Mark) {
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

// wake wakes all who wait for a mark; the caller holds r.mu.
func (r *recentMarks) wake() {
	if r.added != nil {
		close(r.added)
		r.added = nil
	}
}

// after returns the oldest mark kept with a number above seq, or what is closed
// when there is another one to look at.
func (r *recentMarks) after(seq int) (*Mark, <-chan struct{}, error) {
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
