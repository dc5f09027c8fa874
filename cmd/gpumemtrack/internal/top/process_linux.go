package top

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/internal/container"
)

// commandOf returns the command line of a process, or "" if it is unknown.
func commandOf(pid int) string {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if words = bytes.TrimRight(words, "\x00"); err == nil && len(words) > 0 {
		return string(bytes.ReplaceAll(words, []byte{0}, []byte{' '}))
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return "[" + string(bytes.TrimSpace(name)) + "]"
}

// tick is the unit of times in /proc/PID/stat (USER_HZ): 100 per second on every kernel, whatever its timer.
const tick = 10 * time.Millisecond

// facts returns what the system knows about a process. Its use of a processor is measured since the previous
// sample, and unknown at the first.
func (t *processTable) facts(pid int) processFacts {
	facts := unknownProcess
	facts.User, facts.Container = t.userOf(pid), container.Of(pid)
	started, used, ok := timesOf(pid)
	if !ok {
		return facts
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) == nil {
		facts.Age = max(0, time.Duration(now.Nano())-started)
	}
	facts.CPU = t.share(pid, cpuTime{started: started, used: used, at: time.Now()})
	return facts
}

// timesOf reads fields 14, 15 and 22 of /proc/PID/stat (proc_pid_stat(5)): the processor time in
// user and kernel mode, and when the process started. The second field, the program's name, may
// contain spaces and parentheses.
func timesOf(pid int) (started, used time.Duration, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, false
	}
	var n [3]int64
	for i, field := range []int{11, 12, 19} {
		if n[i], err = strconv.ParseInt(string(fields[field]), 10, 64); err != nil {
			return 0, 0, false
		}
	}
	return time.Duration(n[2]) * tick, time.Duration(n[0]+n[1]) * tick, true
}

// userOf returns the name of the user that a process runs as, or the number if there is no name.
func (t *processTable) userOf(pid int) string {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	id := strconv.FormatUint(uint64(stat.Uid), 10)
	if name, known := t.users[id]; known {
		return name
	}
	t.users[id] = id
	if u, err := user.LookupId(id); err == nil {
		t.users[id] = u.Username
	}
	return t.users[id]
}
