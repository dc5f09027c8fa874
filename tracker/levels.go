package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// levels are those of now. The device is asked first, with no lock held: if what
// it says contradicts the ledger, it may be out of date, and is asked again.
func (t *MemTracker) levels() snapshot.Levels {
	for again := true; ; again = false {
		levels := t.deviceLevels()
		t.mu.Lock()
		t.ledgerLevels(&levels)
		t.mu.Unlock()
		if !again || !contradict(levels) {
			return levels
		}
	}
}

// deviceLevels asks the device; no lock is held. Reserved is what a pool of the device
// holds besides the tracker's own cache. What is pending no more is inactive then.
func (t *MemTracker) deviceLevels() snapshot.Levels {
	if t.cache != nil {
		t.locked.Poll()
	}
	levels := snapshot.Levels{DriverUsed: -1, DriverTotal: -1}
	if pool, ok := alloc.As[ability.ReservingDevice](t.device); ok {
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

// ledgerLevels fills in what the ledger knows; the caller holds t.mu.
func (t *MemTracker) ledgerLevels(levels *snapshot.Levels) {
	l := &t.ledger
	levels.Live = l.Current
	levels.Allocated, levels.Registered = l.Allocated, l.Registered
	levels.Memory, levels.HostReserved = l.ByMemory, l.Host.Registered
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
