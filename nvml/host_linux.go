package nvml

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// hostMemory returns the machine's main memory: all of it, and what a new
// program could have (MemTotal and MemAvailable of /proc/meminfo).
func hostMemory() (total, available uint64, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); found < 2 && lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "MemTotal:" && fields[0] != "MemAvailable:" {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		if fields[0] == "MemTotal:" {
			total = kib * 1024
		} else {
			available = kib * 1024
		}
		found++
	}
	return total, available, found == 2
}
