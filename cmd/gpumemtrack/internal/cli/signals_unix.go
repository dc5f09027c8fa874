//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// StopSignals end a recording as they would end a program: a hangup does not under nohup.
func StopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
