// Package spinlock is a mutex for sections of some hundred nanoseconds that very
// many goroutines enter very often.
//
// Under such a load a sync.Mutex is slow or unfair. This one keeps three rules:
//
//   - An Unlock leaves the lock free, so that a goroutine that runs can take it again and again. To
//     hand it from one processor to the next costs many times what a section does.
//   - No goroutine waits for long while others take the lock. Those that wait stand in line, and the
//     first of them asks for the lock after some microseconds. It is then the next to get it.
//   - Of those in line only the first uses a processor, until it seems that the owner has none.
//
// Built with the tag lockprobe, each Mutex knows for how long it was held at most: see Longest.
package spinlock

import (
	"fmt"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
	asked  // by the first in line: no other goroutine may take the lock
	asleep // the first in line: Unlock wakes it
)

const (
	spins = 4    // tries of a goroutine that finds the line empty
	polls = 40   // of the lock by the first in line, before it asks
	waits = 1000 // rounds of the first in line after it has asked, before it sleeps
	quiet = 4    // polls in a row that find the lock free, before it takes it

	spinPause = 20   // rounds of an empty loop, some nanoseconds
	pollPause = 1000 // some hundred nanoseconds: frequent polls would slow the owner down
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

// take takes the lock if it is free, which its state tells: 0 or, for the goroutine that has asked, asked.
func (m *Mutex) take(free uint32) bool {
	return m.state.Load() == free && m.state.CompareAndSwap(free, locked)
}

// lockFirst is Lock for the first in line. If the lock stays free for a while, it is hardly used, and lockFirst takes it. If
// the lock is in use all the time, it lets the others go on for some microseconds: that
// costs less than to move the lock to another processor for each section. Then it asks for the lock.
func (m *Mutex) lockFirst() {
	free := 0
	for range polls {
		if m.state.Load() != 0 {
			free = 0
		} else if free++; free >= quiet && m.take(0) {
			return
		}
		pause(pollPause)
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

// pause lets time pass without touching memory.
//
//go:noinline
func pause(rounds int) {
	for range rounds {
	}
}

// line is where goroutines wait, first come, first served. All but the first are asleep.
//
// Each sleeps on a sync.Mutex. Unlike channels and sync.Cond it belongs to no bubble of
// testing/synctest, so that goroutines inside and outside of a bubble can share a lock.
type line struct {
	taken atomic.Bool // a goroutine is the first; written under mu

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

// Hold is a time during which a Mutex was locked. It is processor time: what the operating system gave to
// others meanwhile does not count.
type Hold struct {
	Time  time.Duration
	calls []uintptr // of the Unlock
}

// String prints the time and the functions that led there: "0.012 ms tracker.(*history).read <- tracker.(*MemTracker).History".
func (h Hold) String() string {
	var functions []string
	for frames, more := runtime.CallersFrames(h.calls), true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, "runtime.") {
			break
		}
		functions = append(functions, path.Base(f.Function))
	}
	text := fmt.Sprintf("%.3f ms", h.Time.Seconds()*1e3)
	if len(functions) == 0 {
		return text
	}
	return text + " " + strings.Join(functions, " <- ")
}
