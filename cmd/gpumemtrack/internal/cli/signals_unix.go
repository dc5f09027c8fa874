//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// StopSignals returns the signals that end a command that watches. A hangup is one of them, unless
// nohup has turned it off.
func StopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
