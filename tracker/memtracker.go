package tracker

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/clock"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/dumps"
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

// recentMarks keeps the latest marks. Track only adds a mark and wakes the readers that wait, so a slow reader delays
// no Track, and misses marks.
type recentMarks struct {
	max int

	mu     sync.Mutex
	kept   []*snapshot.Mark // oldest first
	added  chan struct{}    // closed when a mark is added; nil while no reader waits
	closed bool
}

const defaultMaxMarks = 128

func (r *recentMarks) add(m *snapshot.Mark) {
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

// wake wakes all readers that wait for a mark. The caller holds r.mu.
func (r *recentMarks) wake() {
	if r.added != nil {
		close(r.added)
		r.added = nil
	}
}

// all returns the marks kept, oldest first. They are shared.
func (r *recentMarks) all() []*snapshot.Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// after returns the oldest kept mark with a number above seq, or a channel that is closed when a mark is added.
func (r *recentMarks) after(seq int) (*snapshot.Mark, <-chan struct{}, error) {
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

const (
	defaultMaxDumps     = 8
	defaultMaxDumpBytes = 16 * alloc.MiB
)

// dumpFiles writes the dumps of a tracker to files.
type dumpFiles struct {
	max      int         // most files of this process in a directory
	maxBytes alloc.Bytes // most bytes of each

	mu sync.Mutex // one file at a time
	// signals has, by the channel that ends a DumpOnSignal, the channel that gets its signals; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// write writes the dump to a new file, when no other is being written.
func (w *dumpFiles) write(dir string, dump *snapshot.Dump) (path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return dumps.Write(dir, dump, w.max, w.maxBytes)
}

// stopAll ends every DumpOnSignal, when no file is being written.
func (w *dumpFiles) stopAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for done := range w.signals {
		w.stop(done)
	}
}

// stop ends a DumpOnSignal, once; the caller holds w.mu.
func (w *dumpFiles) stop(done chan struct{}) {
	if got, ok := w.signals[done]; ok {
		signal.Stop(got)
		close(done)
		delete(w.signals, done)
	}
}

// openTrackers are the open trackers of the process. A full device may be full because of another tracker's cache.
var openTrackers trackerList

// trackerList has trackers in the order of their creation. It does not keep a tracker from being collected.
type trackerList struct {
	mu   sync.Mutex
	open []weak.Pointer[MemTracker]
}

func (l *trackerList) add(t *MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	collected := func(p weak.Pointer[MemTracker]) bool { return p.Value() == nil }
	l.open = append(slices.DeleteFunc(l.open, collected), weak.Make(t))
}

func (l *trackerList) remove(t *MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(p weak.Pointer[MemTracker]) bool { return p.Value() == t })
}

// except returns all trackers but t, which may be nil.
func (l *trackerList) except(t *MemTracker) (others []*MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.open {
		if open := p.Value(); open != nil && open != t {
			others = append(others, open)
		}
	}
	return others
}
