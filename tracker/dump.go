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

// dumper makes the dumps of a tracker, and writes them to files.
type dumper struct {
	t        *MemTracker
	max      int         // most files of this process in a directory
	maxBytes alloc.Bytes // most bytes of each

	mu sync.Mutex // one file at a time
	// signals has, by the channel that ends a DumpOnSignal, the channel that gets its signals; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// write writes the dump to a new file, when no other is being written.
func (w *dumper) write(dir string, dump *snapshot.Dump) (path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return dumps.Write(dir, dump, w.max, w.maxBytes)
}

// stopAll ends every DumpOnSignal, when no file is being written.
func (w *dumper) stopAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for done := range w.signals {
		w.stop(done)
	}
}

// stop ends a DumpOnSignal, once; the caller holds w.mu.
func (w *dumper) stop(done chan struct{}) {
	if got, ok := w.signals[done]; ok {
		signal.Stop(got)
		close(done)
		delete(w.signals, done)
	}
}

// newDump returns a dump no larger than a file may be. A closed tracker has no dump, because Close drops the ledger.
func (w *dumper) newDump(reason string) (d *snapshot.Dump, err error) {
	if !w.t.closed.Load() {
		d = w.within(w.maxBytes)
		d.Reason = reason
	}
	if w.t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	return d, nil
}

// within returns a dump that may be as large as the limit. It does not copy what certainly does not fit.
func (w *dumper) within(limit alloc.Bytes) *snapshot.Dump {
	t, d := w.t, &snapshot.Dump{}
	if currentLevels(t).Live.Count > int64(limit/shrink.MinAllocation) {
		d.Snapshot = t.LightSnapshot()
		shrink.Light(d.Snapshot)
	} else {
		d.Snapshot = t.Snapshot()
	}
	// The history is taken after the snapshot, so that it reaches the snapshot. Later events are
	// left out.
	*tables.OfHistory(&d.History) = w.history()
	d.Marks, d.Profile = t.marks.recent.all(), t.sections.profile()
	d.Build, _ = debug.ReadBuildInfo()
	d.Devices = devicesOf(append([]*MemTracker{t}, openTrackers.except(t)...))
	return d
}

// history returns a copy of the latest events, up to one instant. It leaves out old events that new ones overwrite
// during the copy.
func (w *dumper) history() tables.HistoryTables {
	t := w.t
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
