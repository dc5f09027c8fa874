package tracker

import (
	"fmt"
	"runtime/debug"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/shrink"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// newDump returns a dump no larger than a file may be. A closed tracker has no dump, because Close drops the ledger.
func newDump(t *MemTracker, reason string) (d *snapshot.Dump, err error) {
	if !t.closed.Load() {
		d = dumpWithin(t, t.dumps.maxBytes)
		d.Reason = reason
	}
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	return d, nil
}

// dumpWithin returns a dump that may be as large as the limit. It does not copy what certainly does not fit.
func dumpWithin(t *MemTracker, limit alloc.Bytes) *snapshot.Dump {
	d := &snapshot.Dump{}
	if currentLevels(t).Live.Count > int64(limit/shrink.MinAllocation) {
		d.Snapshot = takeSnapshot(t, false)
		shrink.Light(d.Snapshot)
	} else {
		d.Snapshot = takeSnapshot(t, true)
	}
	// The history is taken after the snapshot, so that it reaches the snapshot. Later events are
	// left out.
	*tables.OfHistory(&d.History) = historyOf(t)
	d.Marks, d.Profile = t.marks.recent.all(), t.sections.profile()
	d.Build, _ = debug.ReadBuildInfo()
	d.Devices = devicesOf(append([]*MemTracker{t}, openTrackers.except(t)...))
	return d
}

// historyOf returns a copy of the latest events, up to one instant. It leaves out old events that new ones overwrite
// during the copy.
func historyOf(t *MemTracker) tables.HistoryTables {
	h := tables.HistoryTables{Start: t.start, Stacks: t.stacks}
	h.Events, h.First = t.history.Read(t.mu)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.Sections, h.Streams = t.sections.paths.names, t.ledger.Streams.Handles
	return h
}

// devicesOf returns the levels of the trackers' devices.
func devicesOf(trackers []*MemTracker) (devices []*snapshot.Snapshot) {
	for _, t := range trackers {
		levels := currentLevels(t)
		devices = append(devices, &snapshot.Snapshot{Device: t.device.Name(), Ordinal: t.device.Ordinal(), UUID: uuid(t.device), Levels: levels})
	}
	return devices
}
