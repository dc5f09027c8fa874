package cache

import (
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// driverLock is held while segments come from or go back to the driver. It waits for more than its turn: whoever waits
// tries again when a block becomes inactive, which may be all that it needs.
//
// If a method of the device calls the cache, the goroutine would wait for itself: it gets an error instead.
type driverLock struct {
	mu      *spinlock.Mutex // the cache's, which guards the fields below
	polling *deviceLock     // which is locked after this

	held    bool
	owner   uint64        // the goroutine that holds it
	waiting []*sync.Mutex // each is locked, until its owner is to try again
}

// lock locks d. While another goroutine holds it, lock calls instead, which may be nil, with mu held, and again
// whenever a block has become inactive: if instead reports true, lock returns without d. The error is
// alloc.ErrReentrant if the calling goroutine holds d already, or polling: who holds d may be waiting for that.
func (d *driverLock) lock(instead func() bool) (locked bool, err error) {
	me := callstack.Goroutine()
	if d.polling.owner.Load() == me {
		return false, alloc.ErrReentrant
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.held {
		if d.owner == me {
			return false, alloc.ErrReentrant
		}
		if instead != nil && instead() {
			return false, nil
		}
		// A sync.Mutex, as a channel may belong to a bubble of testing/synctest.
		bell := new(sync.Mutex)
		bell.Lock()
		d.waiting = append(d.waiting, bell)
		d.mu.Unlock()
		bell.Lock()
		d.mu.Lock()
	}
	d.held, d.owner = true, me
	return true, nil
}

// unlock unlocks d.
func (d *driverLock) unlock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held, d.owner = false, 0
	d.tryAgain()
}

// tryAgain has all goroutines try again that wait for d. The caller holds mu.
func (d *driverLock) tryAgain() {
	for _, bell := range d.waiting {
		bell.Unlock()
	}
	d.waiting = nil
}

// deviceLock is a mutex that is held while the device is asked about events. As with driverLock, a goroutine that would
// wait for itself gets an error.
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
