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

// dumpFiles writes the dumps of a tracker to files.
type dumpFiles struct {
	max      int         // most files of this process in a directory
	maxBytes alloc.Bytes // most bytes of each

	mu sync.Mutex // one file at a time
	// signals has, by the channel that ends a DumpOnSignal, the channel that gets its signals; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// write writes the dump to a new file, when no other is being written.
func (w *dumpFiles) write(dir string, dump *snapshot.Dump) (path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return dumps.Write(dir, dump, w.max, w.maxBytes)
}

// stopAll ends every DumpOnSignal, when no file is being written.
func (w *dumpFiles) stopAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for done := range w.signals {
		w.stop(done)
	}
}

// stop ends a DumpOnSignal, once; the caller holds w.mu.
func (w *dumpFiles) stop(done chan struct{}) {
	if got, ok := w.signals[done]; ok {
		signal.Stop(got)
		close(done)
		delete(w.signals, done)
	}
}
