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
// file that is being written. Config.Logger gets the errors.
//
//	stop := tr.DumpOnSignal("dumps") // kill -USR1 <pid>
//	defer stop()
func (t *MemTracker) DumpOnSignal(dir string, signals ...os.Signal) (stop func()) {
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGUSR1}
	}
	got, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(got, signals...)
	t.dumps.mu.Lock()
	if t.dumps.signals == nil {
		t.dumps.signals = make(map[chan struct{}]chan os.Signal)
	}
	t.dumps.signals[done] = got
	t.dumps.mu.Unlock()
	stop = func() {
		t.dumps.mu.Lock()
		defer t.dumps.mu.Unlock()
		t.dumps.stop(done)
	}
	if t.closed.Load() {
		stop()
	}
	go func() {
		for {
			select {
			case s := <-got:
				t.dumpFor(s, dir, done)
			case <-done:
				return
			}
		}
	}()
	return stop
}

// dumpFor writes the dump that a signal asked for, unless that has ended. The
// logger's code is not ours and may end it.
func (t *MemTracker) dumpFor(s os.Signal, dir string, done chan struct{}) {
	var path string
	d, err := t.newDump(s.String())
	t.dumps.mu.Lock()
	_, wanted := t.dumps.signals[done]
	if wanted && err == nil {
		path, err = dumps.Write(dir, d, t.dumps.max, t.dumps.maxBytes)
	}
	t.dumps.mu.Unlock()
	switch {
	case !wanted:
	case err != nil:
		t.report.Log.Error("gpumemtrack: a dump could not be written", "err", err)
	default:
		t.report.Log.Info("gpumemtrack: dump written", "signal", s.String(), "path", path)
	}
}
