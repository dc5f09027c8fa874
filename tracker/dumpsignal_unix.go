//go:build unix

package tracker

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// DumpOnSignal makes the process write a DumpFile to the directory when it gets
// SIGUSR1, or one of the signals named instead, until stop is called or the
// tracker closed. What cannot be written is told to Config.Logger.
//
//	stop := tr.DumpOnSignal("dumps") // kill -USR1 <pid>
//	defer stop()
func (t *MemTracker) DumpOnSignal(dir string, signals ...os.Signal) (stop func()) {
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGUSR1}
	}
	got, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(got, signals...)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case s := <-got:
				if path, err := t.DumpFile(dir, s.String()); err != nil {
					t.report.log.Error("gpumemtrack: a dump could not be written", "err", err)
				} else {
					t.report.log.Info("gpumemtrack: dump written", "signal", s.String(), "path", path)
				}
			case <-done:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		signal.Stop(got)
		close(done)
		running.Wait()
	})
	t.dumps.onSignal.Lock()
	t.dumps.stops = append(t.dumps.stops, stop)
	t.dumps.onSignal.Unlock()
	if t.closed.Load() {
		stop()
	}
	return stop
}
