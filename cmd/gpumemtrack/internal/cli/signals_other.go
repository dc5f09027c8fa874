//go:build !unix

package cli

import (
	"os"
)

// StopSignals returns the signals that end a command that watches.
func StopSignals() []os.Signal { return []os.Signal{os.Interrupt} }

const exitClosedPipe = ExitFailed

func isClosedPipe(error) bool { return false }

func keepClosedPipes() (stop func()) { return func() {} }
