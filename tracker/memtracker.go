package tracker

import (
	"fmt"
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
	streamed alloc.StreamAllocator
	cache    *cache.Cache
	locked   cachelock.Cache // the cache, for calls with mu held
	owned    bool            // the cache is the tracker's own
	opened   *openedDevice
	freed    *freedMemory  // nil without Config.FindLateWrites
	onHost   bool          // the device's memory is the host's
	memory   atomic.Uint32 // alloc.Memory of the device
	findLost bool
	freeLost bool

	origin snapshot.Origin
	start  time.Time
	began  time.Duration // clock.Now at start
	clock  func() time.Time
	stacks *ledger.Stacks

	reportPath string // path of the report's file; "" if there is none, or if Config.Report shows the report
	toldReport atomic.Bool

	marking sync.Mutex // one Track at a time; taken before mu
	marks   int
	report  report.Report
	recent  recentMarks

	failing failing
	dumps   dumping

	// mu is the cache's own lock if there is a cache, so that the cache and the ledger change in
	// one step. No foreign code is called while it is held, not even the clock.
	mu       *spinlock.Mutex
	ledger   ledger.Ledger[*MemTracker]
	history  ledger.History
	sections sectionTable
	everLost int64
	closed   atomic.Bool // written under mu

	toldClosed atomic.Bool // see usedAfterClose
}

// goroutine is what callstack.Goroutine returns, or 0.
type goroutine = uint64

// tick tells the history the time. Events that are added where the clock may not be asked, as by
// segment, get this time.
func (t *MemTracker) tick(now time.Duration) {
	t.mu.Lock()
	t.history.Moment(now)
	t.mu.Unlock()
}

// startClock begins to count the time. In a bubble of testing/synctest it asks package time, whose times have no monotonic
// reading there: the processor's counter does not wait with the bubble.
func (t *MemTracker) startClock() {
	if t.clock == nil && t.start == t.start.Round(0) {
		t.clock = time.Now
	}
	if t.clock != nil {
		t.start = t.clock()
		return
	}
	t.began = clock.Now()
}

// now returns the time since the tracker's start. Call it before taking the lock: the clock may be
// anybody's code.
func (t *MemTracker) now() time.Duration {
	if t.clock != nil {
		return t.clock().Sub(t.start)
	}
	return clock.Now() - t.began
}

// usedAfterClose logs once that the program still uses a tracker that it has closed. The caller
// holds no lock.
func (t *MemTracker) usedAfterClose(what string) {
	if t.toldClosed.CompareAndSwap(false, true) {
		t.report.Log.Warn("gpumemtrack: used after Close: a closed tracker knows nothing", "called", what)
	}
}

// giveBack gives back what a closed tracker's cache still holds, and closes a
// device of its own once no buffer is live. A cache that the caller made is the
// caller's to empty.
func (t *MemTracker) giveBack() (err error) {
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

// freedAfterClose gives the memory of a free after Close back to the driver, once the work of other streams
// on it is done. The free itself has succeeded: an error of the driver is only logged, and the next free
// tries again.
func (t *MemTracker) freedAfterClose() {
	if t.owned {
		if stats := t.cache.Stats(); stats.Releasable == 0 && stats.Pending.Count.Current == 0 {
			return
		}
	}
	if err := t.giveBack(); err != nil {
		t.report.Log.Warn("gpumemtrack: memory freed after Close could not be given back to the driver", "err", err)
	}
}

// trackers are the open trackers of the process, in the order of their creation. A full device may
// be full because of another tracker's cache. The list does not keep a tracker from being
// collected.
var trackers struct {
	mu   sync.Mutex
	open []weak.Pointer[MemTracker]
}

func (t *MemTracker) enlist() {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	trackers.open = append(slices.DeleteFunc(trackers.open, isGone), weak.Make(t))
}

func (t *MemTracker) delist() {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	trackers.open = slices.DeleteFunc(trackers.open, func(p weak.Pointer[MemTracker]) bool { return p.Value() == t })
}

func isGone(p weak.Pointer[MemTracker]) bool { return p.Value() == nil }

// others returns the other open trackers.
func (t *MemTracker) others() (others []*MemTracker) {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	for _, p := range trackers.open {
		if open := p.Value(); open != nil && open != t {
			others = append(others, open)
		}
	}
	return others
}

// cachedElsewhere returns what other trackers' caches could give back to this
// tracker's device.
func (t *MemTracker) cachedElsewhere() (bytes alloc.Bytes) {
	for _, other := range t.others() {
		if other.cache == nil || other.cache == t.cache || other.onHost != t.onHost || !sameDevice(other.device, t.device) {
			continue
		}
		bytes += other.cache.Stats().Releasable
	}
	return bytes
}

// recentMarks keeps the latest marks. Readers come and take them: Track only
// adds one and wakes who waits, so that a slow reader holds up nobody, and misses marks.
type recentMarks struct {
	max int

	mu     sync.Mutex
	kept   []*snapshot.Mark // oldest first
	added  chan struct{}    // closed when a mark is added; nil while nobody waits
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

// wake wakes all who wait for a mark; the caller holds r.mu.
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

// after returns the oldest mark kept with a number above seq, or what is closed
// when there is another one to look at.
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

// failing is what a tracker needs for allocations that fail.
type failing struct {
	dir              string       // directory of dumps; "" means no dumps
	dumps            atomic.Int64 // written for lack of memory, and left out since they were too many
	others           func() (alloc.Bytes, error)
	untrackedAtStart alloc.Bytes
}
