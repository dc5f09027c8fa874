//go:build !unix

package cli

import (
	"os"
)

// StopSignals returns the signals that end a command that watches.
func StopSignals() []os.Signal { return []os.Signal{os.Interrupt} }
