package tracker

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// takeSnapshot is MemTracker.Snapshot if full is set, and LightSnapshot otherwise.
func takeSnapshot(t *MemTracker, full bool) *snapshot.Snapshot {
	now := t.clock.now() // before the device is asked: the clock may be code that allocates
	s := &snapshot.Snapshot{Origin: t.origin, Device: t.device.Name(), Ordinal: t.device.Ordinal(), UUID: uuid(t.device)}
	lists := tables.Of(&s.Tables)
	lists.Stacks, lists.Epoch = t.stacks, t.start
	s.Levels = lockLevels(t, t.mu)
	s.Time = t.start.Add(t.history.Advance(now))
	s.Peak, s.Total, s.Events = t.ledger.Peak, t.ledger.Total, t.history.Next
	lists.Sections, lists.Streams = t.sections.paths.names, t.ledger.Streams.Handles
	if t.cache != nil && !t.onHost {
		stats := t.locked.Stats()
		s.Cache = &stats
	}
	v := viewLedger(t, full)
	t.mu.Unlock()

	index := v.copySites(t.mu, lists)
	if full {
		v.copyAllocations(t.mu, lists, index)
		copyLifetimes(t, lists)
	}
	if v.segments != nil {
		s.Segments = v.segments.Segments()
	}
	if t.closed.Load() {
		warnClosed(t, "Snapshot")
	}
	return s
}

// ledgerView is the ledger and the cache at one instant, not copied yet.
type ledgerView struct {
	buckets  *slab.View[ledger.Bucket[*MemTracker]]
	retired  *slab.View[tables.RetiredEntry]
	epoch    uint64
	counts   [3]int                    // of buckets, retired entries, records
	records  *slab.View[ledger.Record] // nil of a light snapshot
	labels   *slab.View[string]
	segments cachelock.Cut // nil too without a cache
}

// viewLedger returns the ledger of this instant. The caller holds the lock.
func viewLedger(t *MemTracker, full bool) *ledgerView {
	l := &t.ledger
	v := &ledgerView{
		buckets: l.Buckets.View(), retired: l.Buckets.Retired.View(), epoch: l.Epoch,
		counts: [3]int{l.Buckets.Len(), l.Buckets.Retired.Len(), l.Records.Len()},
	}
	if !full {
		return v
	}
	v.records, v.labels = l.Records.View(), l.Labels.View()
	if t.cache != nil && !t.onHost {
		v.segments = t.locked.Cut()
	}
	return v
}

// copySites copies the buckets, and returns the index of each in Sites, by ID.
func (v *ledgerView) copySites(lock sync.Locker, to *tables.Tables) (index []int32) {
	index = make([]int32, v.buckets.Bound())
	to.Sites = make([]tables.SiteEntry, 0, v.counts[0])
	v.buckets.Read(lock, func(first slab.ID, buckets []ledger.Bucket[*MemTracker]) {
		for i := range buckets {
			if b := &buckets[i]; b.Group != nil {
				index[int(first)+i] = int32(len(to.Sites))
				to.Sites = append(to.Sites, tables.SiteEntry{Place: b.Place.Place, Tensor: &b.Group.Tensor, Live: b.Live, Peak: b.AtPeak(v.epoch), Total: b.Total, Stream: b.Stream})
			}
		}
	})
	to.Retired = make([]tables.RetiredEntry, 0, v.counts[1])
	v.retired.Read(lock, func(_ slab.ID, entries []tables.RetiredEntry) {
		for _, e := range entries {
			if !e.Total.IsZero() {
				to.Retired = append(to.Retired, e)
			}
		}
	})
	return index
}

// copyAllocations copies the records, in the order of their allocation.
func (v *ledgerView) copyAllocations(lock sync.Locker, to *tables.Tables, index []int32) {
	labels := make(map[slab.ID]string)
	v.labels.Read(lock, func(first slab.ID, names []string) {
		for i, name := range names {
			if name != "" {
				labels[first+slab.ID(i)] = name
			}
		}
	})
	to.Allocations = make([]tables.AllocationEntry, 0, v.counts[2])
	v.records.Read(lock, func(_ slab.ID, records []ledger.Record) {
		for i := range records {
			if r := &records[i]; r.State == ledger.Live && int(r.Bucket) < len(index) {
				to.Allocations = append(to.Allocations, tables.AllocationEntry{
					Site: index[r.Bucket], Foreign: r.Foreign, Unreachable: r.Unreachable, Ptr: r.Ptr,
					InLine: r.InLine, InPath: r.InPath, Allocated: r.Allocated, Since: r.Since, Seq: r.Seq, Label: labels[r.Label],
				})
			}
		}
	})
	slices.SortFunc(to.Allocations, func(a, b tables.AllocationEntry) int { return cmp.Compare(a.Seq, b.Seq) })
}

// copyLifetimes copies the lifetimes of each line's freed buffers, and of the call stacks that hold
// enough to be named.
func copyLifetimes(t *MemTracker, to *tables.Tables) {
	stacks, lines := make(map[tables.StackID]int64), make(map[ledger.LineID]int64)
	for _, e := range to.Sites {
		stacks[e.Stack] += e.Live
	}
	to.Lines, to.Paths = make(map[mem.Frame]*survival.Unit), make(map[tables.StackID]*survival.Unit)
	for stack, live := range stacks {
		lines[t.stacks.Line(stack)] += live
		if live >= survival.Fewest {
			if u := t.ledger.Buckets.CopyPath(t.mu, stack); u != nil {
				to.Paths[stack] = u
			}
		}
	}
	for line, u := range t.ledger.Buckets.CopyLines(t.mu, func(line ledger.LineID) bool { return lines[line] >= survival.Fewest }) {
		to.Lines[t.stacks.Frame(line)] = u
	}
}

// currentLevels returns the levels of this moment.
func currentLevels(t *MemTracker) snapshot.Levels {
	levels := lockLevels(t, t.mu)
	t.mu.Unlock()
	return levels
}

// maxAttempts is how often a device is asked that contradicts the ledger.
const maxAttempts = 8

// lockLevels takes the locks, t.mu last, and returns the levels of that instant. It asks the device
// first, without a lock. If the answer contradicts the ledger it is out of date, and the device is
// asked again.
func lockLevels(t *MemTracker, locks ...sync.Locker) snapshot.Levels {
	for attempt := 1; ; attempt++ {
		levels := deviceLevels(t)
		for _, l := range locks {
			l.Lock()
		}
		if addLedgerLevels(t, &levels); attempt == maxAttempts || !contradict(levels) {
			return levels
		}
		for _, l := range slices.Backward(locks) {
			l.Unlock()
		}
	}
}

// deviceLevels asks the device, without a lock. Reserved is what a pool of the device holds besides
// the tracker's own cache. Memory that is no longer pending counts as inactive.
func deviceLevels(t *MemTracker) snapshot.Levels {
	if t.cache != nil {
		t.locked.Poll()
	}
	levels := snapshot.Levels{DriverUsed: -1, DriverTotal: -1}
	if pool, ok := alloc.As[capability.ReservingDevice](t.device); ok {
		if reserved, err := pool.Reserved(); err == nil {
			levels.Reserved = reserved
		}
	}
	if info, err := t.device.MemInfo(); err == nil && info.Total > 0 {
		levels.DriverTotal = info.Total
		if 0 <= info.Free && info.Free <= info.Total {
			levels.DriverUsed = info.Used()
		}
	}
	return levels
}

// addLedgerLevels fills in what the ledger and the cache know. The caller holds t.mu.
func addLedgerLevels(t *MemTracker, levels *snapshot.Levels) {
	l := &t.ledger
	levels.Live = l.Current
	levels.Allocated, levels.Registered = l.Allocated, l.Registered
	levels.Memory, levels.HostReserved = l.ByMemory.Map(), l.Host.Registered
	own, pending := l.Allocated-l.Registered, alloc.Bytes(0)
	if t.onHost {
		own = l.Host.Allocated - l.Host.Registered
	}
	if t.cache != nil {
		stats := t.locked.Stats()
		own, pending = stats.Reserved.Bytes.Current, stats.Pending.Bytes.Current
	}
	if t.onHost {
		levels.HostReserved += own
		return
	}
	levels.Reserved, levels.Pending = max(levels.Reserved, own), pending
}

// contradict reports whether the driver has less in use than the tracker holds.
func contradict(l snapshot.Levels) bool { return 0 <= l.DriverUsed && l.DriverUsed < l.Reserved }
