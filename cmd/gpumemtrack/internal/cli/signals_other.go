//go:build !unix

package cli

import (
	"os"
)

// stopSignals are the signals that end a command.
func stopSignals() []os.Signal { return []os.Signal{os.Interrupt} }

const exitClosedPipe = ExitFailed

func isClosedPipe(error) bool { return false }

func keepClosedPipes() (stop func()) { return func() {} }
