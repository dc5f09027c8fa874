package nvml

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// systemProcesses is /proc.
type systemProcesses struct{}

// initialNamespace is the fixed inode of the kernel's first PID namespace
// (PROC_PID_INIT_INO), the driver uses that one's numbers.
const initialNamespace = "pid:[4026531836]"

func (systemProcesses) hostNumbers() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || ns == initialNamespace
}

// exists sends signal 0, which only checks. It does not look in /proc, which with the option
// hidepid hides the processes of other users.
func (systemProcesses) exists(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || err == syscall.EPERM
}

// parent reads fields 4 and 22 of /proc/PID/stat (proc_pid_stat(5)). The
// second field, the program's name, may hold blanks and parentheses.
func (systemProcesses) parent(pid int) (ppid int, started uint64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, false
	}
	ppid, err = strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0, 0, false
	}
	started, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ppid, started, err == nil
}

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
