package bounded

import (
	"errors"
	"sync"
)

// ErrShared is the error of a reader whose Share can grow no more, because others hold the rest of the Budget. Read again with
// all of it, the file may fit.
var ErrShared = errors.New("too little memory is left beside the files that are read at the same time")

// Budget is memory that readers at work at the same time share: together they count no more than that.
//
// A reader begins with a Share that it may wait for. As it must not wait for more while it holds some, which could last
// forever, it fails where its Share cannot grow: then the file is read again, with all of the Budget.
type Budget struct {
	size int64

	mu      sync.Mutex
	free    int64
	waiting []*Share // in turn
}

// NewBudget returns a budget of so many bytes.
func NewBudget(size int64) *Budget { return &Budget{size: size, free: size} }

// Size returns the bytes of the whole budget.
func (b *Budget) Size() int64 { return b.size }

// Share is the part of a Budget that one reader holds.
type Share struct {
	of    *Budget
	ready chan struct{} // closed when it holds what it waited for

	// Guarded by of.mu.
	held  int64
	short bool
}

// Wait returns a share of so many bytes, at most all of the budget, as soon as there are so many, and nobody waits for longer.
// The caller must hold no other share.
func (b *Budget) Wait(bytes int64) *Share {
	s := &Share{of: b, ready: make(chan struct{}), held: min(bytes, b.size)}
	b.mu.Lock()
	b.waiting = append(b.waiting, s)
	b.serve()
	b.mu.Unlock()
	<-s.ready
	return s
}

// serve gives those that wait what there is. b.mu is held.
func (b *Budget) serve() {
	for len(b.waiting) > 0 && b.waiting[0].held <= b.free {
		b.free -= b.waiting[0].held
		close(b.waiting[0].ready)
		b.waiting = b.waiting[1:]
	}
}

// Release gives all of the share back.
func (s *Share) Release() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.free += s.held
	s.held = 0
	s.of.serve()
}

// Short reports whether the share could not grow when a reader needed more.
func (s *Share) Short() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.short
}

// grow makes the share at least so large, and returns how large it is. It does not wait: ok is false if there is too little.
func (s *Share) grow(bytes int64) (held int64, ok bool) {
	const step = 1 << 20 // so that a reader seldom comes for more
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	more := bytes - s.held
	if more > s.of.free {
		s.short = true
		return s.held, false
	}
	if more > 0 {
		more = min(max(more, step), s.of.free)
		s.held += more
		s.of.free -= more
	}
	return s.held, true
}
