package tracker

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/shrink"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Record returns everything that the tracker knows: a Snapshot, the History up to it, the
// latest Marks, and the Profile of ended sections. It does not wait for the device. The
// packages below tracker/export write it.
func (t *MemTracker) Record() *snapshot.Record {
	r := &snapshot.Record{Snapshot: t.Snapshot(), History: t.History(), Marks: t.Marks(), Profile: t.profile()}
	t.describeIn(r)
	return r
}

// describeIn adds what is known besides the ledger.
func (t *MemTracker) describeIn(r *snapshot.Record) {
	r.Time, r.PID = r.Snapshot.Time, os.Getpid()
	r.Build, _ = debug.ReadBuildInfo()
	for _, other := range append([]*MemTracker{t}, t.others()...) {
		levels := other.levels()
		r.Devices = append(r.Devices, snapshot.Head{Device: other.device.Name(), Ordinal: other.device.Ordinal(), Levels: levels})
	}
}

// Dump writes everything that the tracker knows, its Record, as one JSON object.
// snapshot.ReadDump reads it. The reason is kept in the dump. The error is the writer's, or
// alloc.ErrClosed after Close.
func (t *MemTracker) Dump(w io.Writer, reason string) error {
	d, err := t.newDump(reason, math.MaxInt64)
	if err != nil {
		return err
	}
	return d.WriteJSON(w)
}

// newDump returns a dump that may be as large as the limit; what certainly does not
// fit is not even copied.
func (t *MemTracker) newDump(reason string, limit alloc.Bytes) (*snapshot.Record, error) {
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	d := &snapshot.Record{Reason: reason}
	if t.levels().Live.Count > int64(limit/shrink.MinAllocation) {
		d.Snapshot = t.LightSnapshot()
		shrink.Light(&d.LeftOut, d.Snapshot)
	} else {
		d.Snapshot = t.Snapshot()
	}
	// The history comes after the snapshot: it must reach up to it, and what is later is left out.
	d.History, d.Marks, d.Profile = t.History(), t.Marks(), t.profile()
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	t.describeIn(d)
	return d, nil
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
	d, err := t.newDump(reason, t.dumps.maxBytes)
	if err != nil {
		return "", err
	}
	return t.dumps.save(dir, d)
}
