package tracker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/clock"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// MemTracker allocates memory of one device and keeps a ledger of every live buffer. Its
// methods may be called from any goroutine.
type MemTracker struct {
	device alloc.Device // the cache, if there is one
	name   string       // the device's, and its ordinal
	sized  sizedAllocator
	// streamed is a device that knows of streams; else nil.
	streamed        alloc.StreamAllocator
	cache           *cache.Cache
	locked          cachelock.Cache // the cache, for calls with mu held
	owned           bool            // the cache is the tracker's own
	opened          *openedDevice
	lateWrites      *lateWriteDetector // nil without Config.FindLateWrites
	onHost          bool               // the device's memory is the host's
	memory          atomic.Uint32      // alloc.Memory of the device
	findUnreachable bool
	freeUnreachable bool

	origin snapshot.Origin
	start  time.Time
	clock  trackerClock
	stacks *ledger.Stacks

	report     report.Report
	reportPath string // path of the report's file; "" if there is none, or if Config.Report shows the report
	marks      marks

	oom   failures
	dumps dumpFiles

	// mu is the cache's own lock if there is a cache, so that the cache and the ledger change in
	// one step. No foreign code is called while it is held, not even the clock.
	mu               *spinlock.Mutex
	ledger           ledger.Ledger[*MemTracker]
	history          ledger.History
	sections         sectionTable
	foundUnreachable bool        // a buffer became unreachable that was not freed
	closed           atomic.Bool // written under mu

	loggedClosed atomic.Bool // see warnClosed
}

// marks are the marks of a tracker: see marks.go.
type marks struct {
	mu         sync.Mutex // one Track at a time; taken before the tracker's lock
	last       int        // number of the last mark; guarded by mu
	recent     recentMarks
	loggedPath atomic.Bool // the Logger has the path of the report's file
}

// failures is what a tracker keeps for allocations that fail for lack of memory: see oom.go.
type failures struct {
	dir              string       // directory of dumps; "" means no dumps
	dumps            atomic.Int64 // written for lack of memory, and left out since they were too many
	others           func() (alloc.Bytes, error)
	untrackedAtStart alloc.Bytes
}

// trackerClock is the clock of a tracker. In a bubble of testing/synctest it asks package time, whose times have no
// monotonic reading there: the processor's counter does not wait with the bubble.
type trackerClock struct {
	ask   func() time.Time // nil: the processor's counter
	start time.Time
	began time.Duration // clock.Now at start
}

// newClock starts a clock. ask is Config.Clock.
func newClock(ask func() time.Time) trackerClock {
	c := trackerClock{ask: ask, start: time.Now()}
	if c.ask == nil && c.start == c.start.Round(0) {
		c.ask = time.Now
	}
	if c.ask != nil {
		c.start = c.ask()
	}
	c.began = clock.Now()
	return c
}

// now returns the time since the tracker's start. Call it before taking the lock: the clock may be the program's code.
func (c *trackerClock) now() time.Duration {
	if c.ask != nil {
		return c.ask().Sub(c.start)
	}
	return clock.Now() - c.began
}

// releaseMemory releases what the cache of a closed tracker still holds, and closes a device of its own once no buffer
// is live. It does not empty a cache that the caller made.
func releaseMemory(t *MemTracker) (err error) {
	if t.owned {
		_, err = t.cache.Trim()
	}
	t.mu.Lock()
	last := t.ledger.Buffers == 0
	t.mu.Unlock()
	if err == nil && last {
		err = t.opened.close()
	}
	return err
}

// releaseAfterClose gives the memory of a free after Close back to the driver, once the work of other streams
// on it is done. The free itself has succeeded: an error of the driver is only logged, and the next free
// tries again.
func releaseAfterClose(t *MemTracker) {
	if t.owned {
		if stats := t.cache.Stats(); stats.Reclaimable == 0 && stats.Pending.Count.Current == 0 {
			return
		}
	}
	if err := releaseMemory(t); err != nil {
		t.report.Log.Warn("gpumemtrack: memory freed after Close could not be given back to the driver", "err", err)
	}
}

// warnClosed logs, once, that the program uses a tracker that it has closed. The caller holds no lock.
func warnClosed(t *MemTracker, what string) {
	if t.loggedClosed.CompareAndSwap(false, true) {
		t.report.Log.Warn("gpumemtrack: used after Close: a closed tracker knows nothing", "called", what)
	}
}
