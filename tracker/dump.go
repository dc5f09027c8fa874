package tracker

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/dumps"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/shrink"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	defaultMaxDumps     = 8
	defaultMaxDumpBytes = 16 * alloc.MiB
)

// dumping is how a tracker writes files of dumps.
type dumping struct {
	max      int         // most files of this process in a directory
	maxBytes alloc.Bytes // most bytes of each

	mu sync.Mutex // one file at a time
	// signals has the channels that end each DumpOnSignal, and where its signals
	// come; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// save writes the dump to a new file, when no other is being written.
func (d *dumping) save(dir string, dump *snapshot.Dump) (path string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return dumps.Write(dir, dump, d.max, d.maxBytes)
}

// stopAll ends every DumpOnSignal, when no file is being written.
func (d *dumping) stopAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for done := range d.signals {
		d.stop(done)
	}
}

// stop ends a DumpOnSignal, once; the caller holds d.mu.
func (d *dumping) stop(done chan struct{}) {
	if got, ok := d.signals[done]; ok {
		signal.Stop(got)
		close(done)
		delete(d.signals, done)
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
	*tables.OfHistory(&d.History) = t.events()
	d.Marks, d.Profile = t.recent.all(), t.profile()
	t.describeIn(d)
	return d
}

// events returns a copy of the latest events, up to one instant. It leaves out old events
// that new ones overwrite during the copy.
func (t *MemTracker) events() tables.HistoryTables {
	h := tables.HistoryTables{Start: t.start, Stacks: t.stacks}
	h.Events, h.First = t.history.Read(t.mu)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.Sections, h.Streams = t.sections.paths.names, t.ledger.Streams.Handles
	return h
}

// describeIn adds everything that the snapshot of the ledger does not have.
func (t *MemTracker) describeIn(r *snapshot.Dump) {
	r.Build, _ = debug.ReadBuildInfo()
	for _, other := range append([]*MemTracker{t}, t.others()...) {
		levels := other.levels()
		r.Devices = append(r.Devices, &snapshot.Snapshot{Device: other.device.Name(), Ordinal: other.device.Ordinal(), UUID: uuid(other.device), Levels: levels})
	}
}
