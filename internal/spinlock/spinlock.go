// Package spinlock is a mutex for sections of some hundred nanoseconds that very
// many goroutines enter very often.
package spinlock

import (
	"runtime"
	"sync"
)

// Mutex is a sync.Mutex whose Lock first tries for a while before it waits in
// line. A sync.Mutex with many goroutines in line hands itself from one to the
// next, each time at the cost of waking a goroutine, which is many times the
// length of a short section. The zero Mutex is unlocked.
type Mutex struct {
	mu sync.Mutex
}

const (
	spins  = 30 // tries one after the other: the owner is on another processor, and about to unlock
	yields = 20 // tries with other goroutines running between them: the owner may be one of them
)

// Lock locks m.
func (m *Mutex) Lock() {
	if !m.mu.TryLock() {
		m.lockSlow()
	}
}

func (m *Mutex) lockSlow() {
	for range spins {
		if m.mu.TryLock() {
			return
		}
	}
	for range yields {
		runtime.Gosched()
		if m.mu.TryLock() {
			return
		}
	}
	m.mu.Lock()
}

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }
