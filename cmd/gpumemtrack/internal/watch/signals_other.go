//go:build !unix

package watch

import (
	"os"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

func passedSignals() []os.Signal { return []os.Signal{os.Interrupt} }

// The console sends Ctrl+C to all processes that are attached to it.
func fromTerminal(os.Signal) bool { return true }

func signaled(*os.ProcessState) int { return cli.ExitFailed }

func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	p.Release()
	return true
}
