package tracker

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/shrink"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Dump returns everything that the tracker knows: a Snapshot, the history up to it, the
// latest marks, at most Config.MaxMarks, and the Profile of ended sections. It does not wait for the device. The marks are shared: do not write to them. Its WriteJSON
// writes it as snapshot.ReadDump reads it, and the packages below tracker/export write other formats.
func (t *MemTracker) Dump() *snapshot.Dump {
	return t.dumpWithin(math.MaxInt64)
}

// describeIn adds everything that the snapshot of the ledger does not have.
func (t *MemTracker) describeIn(r *snapshot.Dump) {
	r.Build, _ = debug.ReadBuildInfo()
	for _, other := range append([]*MemTracker{t}, t.others()...) {
		levels := other.levels()
		r.Devices = append(r.Devices, &snapshot.Snapshot{Device: other.device.Name(), Ordinal: other.device.Ordinal(), UUID: uuid(other.device), Levels: levels})
	}
}

// newDump returns a dump no larger than a file may be. A closed tracker has no dump: it has
// forgotten what is live.
func (t *MemTracker) newDump(reason string) (d *snapshot.Dump, err error) {
	if !t.closed.Load() {
		d = t.dumpWithin(t.dumps.maxBytes)
		d.Reason = reason
	}
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	return d, nil
}

// dumpWithin returns a dump that may be as large as the limit; what certainly does not
// fit is not even copied.
func (t *MemTracker) dumpWithin(limit alloc.Bytes) *snapshot.Dump {
	d := &snapshot.Dump{}
	if t.levels().Live.Count > int64(limit/shrink.MinAllocation) {
		d.Snapshot = t.LightSnapshot()
		shrink.Light(d.Snapshot)
	} else {
		d.Snapshot = t.Snapshot()
	}
	// The history is taken after the snapshot, so that it reaches the snapshot. Later events are
	// left out.
	*tables.OfHistory(d) = t.events()
	d.Marks, d.Profile = t.recent.all(), t.profile()
	t.describeIn(d)
	return d
}

// DumpFile writes a Dump to a new file in the directory, which is created if it is missing,
// and returns the file's path. The file appears only when it is complete.
//
// The directory keeps at most Config.MaxDumps files of this process; the oldest are deleted.
// Files of other processes are kept, except unfinished files of programs that were killed. A
// file's name has the time, the host, the process number and a counter.
//
// A file takes at most Config.MaxDumpBytes. A dump that would be larger loses detail until it
// fits: first the older events and marks, then the cache's segments, the single allocations,
// most of the other events, and the call sites that hold least. Dump.LeftOut lists what is
// missing.
//
// The error says that the tracker is closed (alloc.ErrClosed) or that the file cannot be
// written; no file is left then.
func (t *MemTracker) DumpFile(dir, reason string) (path string, err error) {
	d, err := t.newDump(reason)
	if err != nil {
		return "", err
	}
	return t.dumps.save(dir, d)
}
