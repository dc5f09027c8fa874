//go:build unix

package tracker

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/dumps"
)

// DumpOnSignal makes the process write a DumpFile to the directory when it receives SIGUSR1,
// or one of the given signals, until stop is called or the tracker is closed. Both wait for a
// file that is being written. Config.Logger gets the errors. Unfinished dumps that killed programs left in the directory
// are deleted.
//
//	stop := tr.DumpOnSignal("dumps") // kill -USR1 <pid>
//	defer stop()
func (t *MemTracker) DumpOnSignal(dir string, signals ...os.Signal) (stop func()) {
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGUSR1}
	}
	dumps.DeleteAbandoned(dir)
	w := &t.dumps
	got, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(got, signals...)
	w.mu.Lock()
	if w.signals == nil {
		w.signals = make(map[chan struct{}]chan os.Signal)
	}
	w.signals[done] = got
	w.mu.Unlock()
	stop = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stop(done)
	}
	if t.closed.Load() {
		stop()
	}
	go func() {
		for {
			select {
			case s := <-got:
				dumpFor(t, s, dir, done)
			case <-done:
				return
			}
		}
	}()
	return stop
}

// dumpFor writes the dump that a signal asked for, unless stop was called. No lock is held while it logs: the
// logger's code is not ours and may call stop.
func dumpFor(t *MemTracker, s os.Signal, dir string, done chan struct{}) {
	var path string
	w := &t.dumps
	d, err := newDump(t, s.String())
	w.mu.Lock()
	_, wanted := w.signals[done]
	if wanted && err == nil {
		path, err = dumps.Write(dir, d, w.max, w.maxBytes)
	}
	w.mu.Unlock()
	switch {
	case !wanted:
	case err != nil:
		t.report.Log.Error("gpumemtrack: a dump could not be written", "err", err)
	default:
		t.report.Log.Info("gpumemtrack: dump written", "signal", s.String(), "path", path)
	}
}
