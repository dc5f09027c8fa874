package cache

import (
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// deviceLock is a mutex that is held while methods of the device run. If such a method calls the cache, the goroutine
// would wait for itself: it gets an error instead.
type deviceLock struct {
	mu    sync.Mutex
	owner atomic.Uint64 // the goroutine that holds mu, or 0
}

// lock locks l. The error is alloc.ErrReentrant if the calling goroutine holds l already.
func (l *deviceLock) lock() error {
	if l.tryLock() {
		return nil
	}
	me := callstack.Goroutine()
	if l.owner.Load() == me {
		return alloc.ErrReentrant
	}
	l.mu.Lock()
	l.owner.Store(me)
	return nil
}

// tryLock locks l if it is free, and reports whether it did.
func (l *deviceLock) tryLock() bool {
	if !l.mu.TryLock() {
		return false
	}
	l.owner.Store(callstack.Goroutine())
	return true
}

func (l *deviceLock) unlock() {
	l.owner.Store(0)
	l.mu.Unlock()
}
