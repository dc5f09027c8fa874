package tracker

import (
	"os"
	"os/signal"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/dumps"
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
