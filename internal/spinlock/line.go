package spinlock

import (
	"sync"
	"sync/atomic"
)

// line is where goroutines wait, first come first served: all but the first are
// asleep.
//
// A sync.Mutex is all that they sleep on. It belongs to no bubble of testing/synctest, as
// channels and sync.Cond do, and so goroutines in and outside of one can share a lock.
type line struct {
	taken atomic.Bool // somebody is the first; written under mu

	mu     sync.Mutex
	behind []*sync.Mutex // the first, each of them locked
}

// enter returns when the caller is the first.
func (l *line) enter() {
	l.mu.Lock()
	if !l.taken.Load() {
		l.taken.Store(true)
		l.mu.Unlock()
		return
	}
	me := new(sync.Mutex)
	me.Lock()
	l.behind = append(l.behind, me)
	l.mu.Unlock()
	me.Lock() // leave unlocks it
}

// leave makes the next one the first.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.behind) == 0 {
		l.taken.Store(false)
		return
	}
	l.behind[0].Unlock()
	l.behind[0] = nil
	l.behind = l.behind[1:]
}
