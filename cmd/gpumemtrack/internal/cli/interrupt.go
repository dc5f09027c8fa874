package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// ownProcess says that nothing else runs in this process: see OwnProcess.
var ownProcess bool

// OwnProcess lets the commands act on the whole process: they limit its memory, and end it when a signal comes. The tests of
// commands run them without that.
func OwnProcess() { ownProcess = true }

// interrupt ends a command that reads or writes files when a signal comes. That takes no longer for a large file, whatever is
// done with it at the moment: nothing waits for the command.
var interrupt struct {
	mu      sync.Mutex
	signals chan os.Signal // nil if signals are left to others
	left    bool           // the command watches them itself
}

// endOnSignal lets the signals that stop a command end the program, with the exit code of shells, from here on.
func endOnSignal(a *App) {
	interrupt.mu.Lock()
	defer interrupt.mu.Unlock()
	if !ownProcess || interrupt.left || interrupt.signals != nil {
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, stopSignals()...)
	interrupt.signals = signals
	go func() {
		got, more := <-signals
		if !more {
			return
		}
		a.progress.finish()
		userfile.RemoveDrafts()
		code := ExitFailed
		if number, ok := got.(syscall.Signal); ok {
			code = ExitSignal + int(number)
		}
		os.Exit(code)
	}()
}

// StopSignals returns the signals that end a command that watches, for it to be notified of. From here on they do not end the
// program by themselves, as they do while it reads a file: also not if it reads another one.
func StopSignals() []os.Signal {
	interrupt.mu.Lock()
	defer interrupt.mu.Unlock()
	interrupt.left = true
	if interrupt.signals != nil {
		signal.Stop(interrupt.signals)
		close(interrupt.signals)
		interrupt.signals = nil
	}
	return stopSignals()
}
