package cache

import (
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// driverLock is held while segments come from or go back to the driver. It waits for more than its turn: whoever waits
// tries again when a block becomes inactive, which may be all that it needs. The cache's mu guards the fields.
//
// If a method of the device calls the cache, the goroutine would wait for itself: it gets an error instead.
type driverLock struct {
	held    bool
	owner   uint64        // the goroutine that holds it
	waiting []*sync.Mutex // each is locked, until its owner is to try again
}

// lockDriver locks driver. While another goroutine holds it, it calls instead, which may be nil, with mu held, and again
// whenever a block has become inactive: if instead reports true, lockDriver returns without the lock. The error is
// alloc.ErrReentrant if the calling goroutine holds driver already.
func (c *Cache) lockDriver(instead func() bool) (locked bool, err error) {
	me := callstack.Goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.driver.held {
		if c.driver.owner == me {
			return false, alloc.ErrReentrant
		}
		if instead != nil && instead() {
			return false, nil
		}
		// A sync.Mutex, as a channel may belong to a bubble of testing/synctest.
		bell := new(sync.Mutex)
		bell.Lock()
		c.driver.waiting = append(c.driver.waiting, bell)
		c.mu.Unlock()
		bell.Lock()
		c.mu.Lock()
	}
	c.driver.held, c.driver.owner = true, me
	return true, nil
}

// unlockDriver unlocks driver.
func (c *Cache) unlockDriver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.driver.held, c.driver.owner = false, 0
	c.driver.tryAgain()
}

// tryAgain has all goroutines try again that wait for driver. The caller holds mu.
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
