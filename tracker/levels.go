package tracker

import (
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

// deviceLevels asks the device; it takes no lock of the tracker's.
func (t *MemTracker) deviceLevels() snapshot.Levels {
	levels := snapshot.Levels{Reserved: -1, DriverUsed: -1, DriverTotal: -1}
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
	levels.Live = t.ledger.current
	levels.Allocated = t.ledger.allocated
	levels.Registered = t.ledger.registered
	levels.Reserved = levels.Allocated - levels.Registered
	if t.cache != nil {
		stats := t.cache.Locked().Stats()
		levels.Reserved, levels.Pending = stats.Reserved.Bytes.Current, stats.Pending.Bytes.Current
	}
}

// contradict reports whether the driver has less in use than the tracker holds.
func contradict(l snapshot.Levels) bool { return 0 <= l.DriverUsed && l.DriverUsed < l.Reserved }
