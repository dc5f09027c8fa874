//go:build !unix

package cli

import (
	"os"
)

// StopSignals are the signals that end what a command watches.
func StopSignals() []os.Signal { return []os.Signal{os.Interrupt} }
