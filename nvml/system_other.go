//go:build !linux

package nvml

import (
	"os"
)

// systemProcesses knows nothing of families here: a target's children are not
// counted.
type systemProcesses struct{}

func (systemProcesses) hostNumbers() bool { return true }

func (systemProcesses) exists(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	p.Release()
	return true
}

func (systemProcesses) parent(int) (ppid int, started uint64, ok bool) { return 0, 0, false }

func hostMemory() (total, available uint64, ok bool) { return 0, 0, false }

// openLibrary opens the driver's library, which needs Linux.
func openLibrary(path string) (Source, error) {
	return nil, notAvailable("libnvidia-ml.so.1 is out of reach: this program was not built for Linux")
}
