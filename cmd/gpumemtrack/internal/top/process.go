package top

import (
	"fmt"
	"time"
)

// processFacts is what the system knows about a process.
type processFacts struct {
	User      string        // "" if unknown
	Container string        // "" if there is none, or if unknown
	Age       time.Duration // negative if unknown
	CPU       float64       // percent of one processor; negative if unknown
}

var unknownProcess = processFacts{Age: -1, CPU: -1}

// processTable remembers how much processor time each process had used. One goroutine uses it.
type processTable struct {
	before, now map[int]cpuTime
	users       map[string]string // names by number
}

// cpuTime is the processor time that a process had used at a moment. started distinguishes the process
// from a later one with the same number.
type cpuTime struct {
	started, used time.Duration
	at            time.Time
}

func newProcessTable() *processTable {
	return &processTable{now: make(map[int]cpuTime), users: make(map[string]string)}
}

// sample asks the system about each process once.
func (t *processTable) sample(pids []int) map[int]processFacts {
	t.before, t.now = t.now, make(map[int]cpuTime, len(pids))
	all := make(map[int]processFacts, len(pids))
	for _, pid := range pids {
		if _, again := all[pid]; !again {
			all[pid] = t.facts(pid)
		}
	}
	return all
}

// share returns the percentage of a processor that a process used since the previous sample.
func (t *processTable) share(pid int, c cpuTime) float64 {
	t.now[pid] = c
	before, ok := t.before[pid]
	since := c.at.Sub(before.at)
	if !ok || before.started != c.started || since <= 0 {
		return -1
	}
	return 100 * max(0, float64(c.used-before.used)/float64(since))
}

// percentCell prints a percentage, or a dash if it is unknown.
func percentCell(v float64) string {
	if v < 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", v)
}

// ageCell prints an age in at most six letters: "45s", "12m30s", "5h12m", "3d4h".
func ageCell(age time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case age < 0:
		return "-"
	case age < time.Minute:
		return fmt.Sprintf("%ds", age/time.Second)
	case age < time.Hour:
		return fmt.Sprintf("%dm%ds", age/time.Minute, age%time.Minute/time.Second)
	case age < day:
		return fmt.Sprintf("%dh%dm", age/time.Hour, age%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", age/day, age%day/time.Hour)
}
