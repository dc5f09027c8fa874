//go:build !unix

package cli

import (
	"os"
)

// StopSignals end a recording.
func StopSignals() []os.Signal { return []os.Signal{os.Interrupt} }
