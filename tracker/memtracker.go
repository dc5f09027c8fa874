package tracker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
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
	locked   cachelock.Cache // the cache, for who holds mu
	owned    bool            // the cache is the tracker's own
	opened   *openedDevice
	freed    *freedMemory  // nil without Config.FindLateWrites
	onHost   bool          // the device's memory is the host's
	memory   atomic.Uint32 // alloc.Memory of the device
	gc       bool          // collect before ClearCache
	lost     LostPolicy

	origin Origin
	start  time.Time
	clock  func() time.Time
	stacks *ledger.Stacks

	marking sync.Mutex // one Track at a time; taken before mu
	marks   int
	report  report.Report
	recent  recentMarks
	growth  *tables.Follower // marking guards it

	failing failing
	dumps   dumps

	// mu is the cache's own lock if there is a cache, so that both change in one
	// step. No code of others is called while it is held, not even the clock.
	mu       *spinlock.Mutex
	ledger   ledger.Ledger
	history  ledger.History
	sections sections
	everLost int64
	closed   atomic.Bool // written under mu

	toldClosed atomic.Bool // see usedAfterClose
}

// goroutine is what callstack.Goroutine returns, or 0.
type goroutine = uint64

// tick tells the history the time. Events that segment adds have this time, if it may not ask the clock.
func (t *MemTracker) tick(now time.Duration) {
	t.mu.Lock()
	t.history.Moment(now)
	t.mu.Unlock()
}

// now returns the time since the tracker's start. Call it before taking the lock: the clock may be
// anybody's code.
func (t *MemTracker) now() time.Duration {
	if t.clock != nil {
		return t.clock().Sub(t.start)
	}
	return time.Since(t.start)
}

// usedAfterClose tells the logger, once, that the program goes on with a tracker
// that it has closed: what was called then finds nothing. The caller holds no lock.
func (t *MemTracker) usedAfterClose(what string) {
	if t.toldClosed.CompareAndSwap(false, true) {
		t.report.Log.Warn("gpumemtrack: used after Close: a closed tracker knows nothing", "called", what)
	}
}
