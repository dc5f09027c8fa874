//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// stopSignals are the signals that end a command. A hangup is one of them, unless nohup has turned it off.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// exitClosedPipe is the exit code of a program whose reader has gone.
const exitClosedPipe = ExitSignal + int(syscall.SIGPIPE)

func isClosedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// keepClosedPipes keeps the program alive when the reader of its output closes the pipe: the write fails
// instead. What it watches and the other files that it writes are then not lost. A program that it runs
// is not affected.
func keepClosedPipes() (stop func()) {
	if signal.Ignored(syscall.SIGPIPE) {
		return func() {} // what it runs shall inherit that
	}
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGPIPE)
	return func() { signal.Stop(unread) }
}
