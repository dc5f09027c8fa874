// Package spinlock is a mutex for sections of some hundred nanoseconds that very
// many goroutines enter very often.
//
// It makes sure of three things that a sync.Mutex under such a load does not. The
// lock is free when it is left, so that a goroutine that runs can take it again and again: to hand
// it from one processor to the next costs many times what a section does. No
// goroutine waits for long while others take it: those who wait stand in line,
// and the first of them asks for the lock after some microseconds, and is the next
// to get it. And of those in line only the first uses a processor, until it seems that
// the owner has none.
//
// Built with the tag lockprobe, each Mutex knows for how long it was held at most: see Longest.
package spinlock

import (
	"sync"
	"sync/atomic"
)

// Mutex is a mutual exclusion lock. The zero Mutex is unlocked. It must not be
// copied after first use.
type Mutex struct {
	probe probe
	state atomic.Uint32 // 0 is free
	line  line
	bell  *sync.Mutex // on which the first in line sleeps; see asleep
}

const (
	locked = 1 << iota
	asked  // by the first in line: nobody else may take the lock
	asleep // the first in line: Unlock wakes it
)

const (
	spins = 4    // tries of who finds nobody in line
	looks = 40   // of the first in line, before it asks
	waits = 1000 // of the first in line, when it has asked, before it sleeps
	quiet = 4    // looks that find the lock free, after which it takes it

	spinPause = 20   // rounds of an empty loop, some nanoseconds
	lookPause = 1000 // some hundred nanoseconds: to look often would slow the owner down
)

// Lock locks m.
func (m *Mutex) Lock() {
	if !m.state.CompareAndSwap(0, locked) {
		m.lockSlow()
	}
	m.probe.locked()
}

// Unlock unlocks m. It panics if m is not locked.
func (m *Mutex) Unlock() {
	m.probe.unlocking()
	if s := m.state.Add(^uint32(0)); s != 0 {
		m.unlockSlow(s)
	}
}

func (m *Mutex) unlockSlow(state uint32) {
	if state&locked != 0 {
		panic("spinlock: unlock of a mutex that is not locked")
	}
	if state&asleep != 0 {
		bell := m.bell
		m.state.And(^uint32(asleep))
		bell.Unlock()
	}
}

func (m *Mutex) lockSlow() {
	for i := 0; i < spins && !m.line.taken.Load(); i++ {
		if m.take(0) {
			return
		}
		pause(spinPause)
	}
	m.line.enter()
	m.lockFirst()
	m.line.leave()
}

// take takes the lock if it is in that state, in which it is free.
func (m *Mutex) take(free uint32) bool {
	return m.state.Load() == free && m.state.CompareAndSwap(free, locked)
}

// lockFirst is Lock for the first in line. A lock that it finds free for a while is
// hardly used. One that is used all the time it leaves to the others at first: turns of some
// microseconds cost less than a change of hands with each section.
func (m *Mutex) lockFirst() {
	free := 0
	for range looks {
		if m.state.Load() != 0 {
			free = 0
		} else if free++; free >= quiet && m.take(0) {
			return
		}
		pause(lookPause)
	}
	m.state.Or(asked)
	for range waits {
		if m.take(asked) {
			return
		}
		pause(spinPause)
	}
	m.bell = new(sync.Mutex)
	m.bell.Lock()
	if m.state.CompareAndSwap(locked|asked, locked|asked|asleep) {
		m.bell.Lock() // Unlock unlocks it
	}
	m.state.Store(locked) // it is free, and kept for the first in line
}

// pause lets time pass without a look at memory.
//
//go:noinline
func pause(rounds int) {
	for range rounds {
	}
}
