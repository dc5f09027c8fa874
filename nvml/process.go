package nvml

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Target is a process whose memory is asked for, alone or with all processes that it started. A
// child that outlives its parent still counts if it was seen together with its parent once.
type Target struct {
	PID      int  `json:"pid"`
	Children bool `json:"children"`
}

// String returns a label: "pid 42", "pid 42 and children".
func (t Target) String() string {
	if t.Children {
		return fmt.Sprintf("pid %d and children", t.PID)
	}
	return fmt.Sprintf("pid %d", t.PID)
}

// MemoryOf returns the memory that a process, or a process and its children, has on a device.
//
// The error is ErrUnknown where the driver lists processes without their memory (WSL, some MIG
// devices), and in a container with its own PID namespace, unless the driver shows the
// container's numbers: it counts processes by the host's. An unknown amount is never returned
// as zero.
func MemoryOf(src Source, d Device, t Target) (alloc.Bytes, error) {
	var r Reading
	readings := []Reading{r}
	src.Read([]Device{d}, []Quantity{MemoryUsed}, readings)
	return newWatcher(t, systemProcesses{}).memory(src, d, &readings[0])
}

// OthersMemory returns the memory that all processes except a target's have on a device, as
// far as the driver lists them. Its errors are those of MemoryOf. A tracker's out of memory
// error can show it; CUDA's ordinal indexes the result of VisibleDevices:
//
//	Config.OtherProcesses = func() (alloc.Bytes, error) {
//		return nvml.OthersMemory(source, visible[ordinal], nvml.Target{PID: os.Getpid()})
//	}
func OthersMemory(src Source, d Device, t Target) (alloc.Bytes, error) {
	if _, err := MemoryOf(src, d, t); err != nil {
		return 0, err
	}
	if k, ok := src.(kernelSource); ok {
		if err := k.sees(0); err != nil {
			return 0, err
		}
	}
	list, err := src.Processes(d)
	if err != nil {
		return 0, err
	}
	w, sum := newWatcher(t, systemProcesses{}), alloc.Bytes(0)
	for pid, memory := range list {
		switch {
		case w.belongs(pid):
		case memory < 0:
			return 0, fmt.Errorf("pid %d: %w", pid, errNoValue)
		default:
			sum += memory
		}
	}
	return sum, nil
}

// busySource is a Source that tells how busy a process keeps a device.
type busySource interface {
	Source
	busy(d Device) (map[int]float64, error)
}

// UtilizationOf returns, by process number, how many percent of a device's multiprocessors (SMs)
// each process used in the last second. If the result has any processes, those that are missing did
// nothing. The error is ErrUnknown if the source does not know (such as nvidia-smi) or if the
// driver has no sample, as for MIG devices and when nothing runs.
func UtilizationOf(src Source, d Device) (map[int]float64, error) {
	if s, ok := src.(busySource); ok {
		return s.busy(d)
	}
	return nil, errNotSupported
}

// processTable is what the operating system knows about processes.
type processTable interface {
	// hostNumbers reports whether processes have the host's numbers here.
	hostNumbers() bool
	exists(pid int) bool
	// parent returns the number of a process's parent, and the process's start time, which tells it
	// from a later process with the same number. ok is false if there is no such process.
	parent(pid int) (ppid int, started uint64, ok bool)
}

// watcher adds up a target's memory, time after time.
type watcher struct {
	target     Target
	table      processTable
	family     map[int]uint64 // start time by PID
	translated bool           // the driver was seen to give this namespace's numbers
	hidden     bool           // the last answer was errHidden
}

func newWatcher(t Target, table processTable) *watcher {
	w := &watcher{target: t, table: table, family: make(map[int]uint64)}
	if _, started, ok := table.parent(t.PID); ok {
		w.family[t.PID] = started
	}
	return w
}

const (
	// maxPID is the largest PID that Linux gives.
	maxPID = 1 << 22
	// unexplained is more memory than an idle GPU shows as used (users of gpustat saw 308 MiB on
	// one whose driver counts its own part). A device with this much in use and no process in its
	// list hides its processes.
	unexplained = 512 * alloc.MiB
)

// memory asks twice before it says that processes are hidden: one that the
// driver listed may have ended before it was looked for here.
func (w *watcher) memory(src Source, d Device, r *Reading) (alloc.Bytes, error) {
	translated := w.translated
	sum, err := w.ask(src, d, r)
	if errors.Is(err, errHidden) && !w.hidden {
		w.translated = translated
		sum, err = w.ask(src, d, r)
	}
	w.hidden = errors.Is(err, errHidden)
	return sum, err
}

// kernelSource is a Source that numbers processes as this process does, and says which it cannot look into.
type kernelSource interface {
	Source
	sees(pid int) error
}

func (w *watcher) ask(src Source, d Device, r *Reading) (alloc.Bytes, error) {
	kernel, own := src.(kernelSource)
	if own {
		if err := kernel.sees(w.target.PID); err != nil {
			return 0, err
		}
	}
	list, err := src.Processes(d)
	if err != nil {
		return 0, err
	}
	sum, found, noValue := alloc.Bytes(0), false, false
	for pid, memory := range list {
		if !w.belongs(pid) {
			continue
		}
		found = true
		noValue = noValue || memory < 0
		sum += memory
	}
	switch {
	case !own && !w.sameNumbers(list, found):
		return 0, fmt.Errorf("%s: %w: start the container with --pid=host to see it", w.target, errHidden)
	case noValue:
		return 0, fmt.Errorf("%s: %w", w.target, errNoValue)
	case !own && len(list) == 0 && usedMemory(r) > unexplained:
		return 0, fmt.Errorf("%s: %w: the driver lists none, although %v are in use", w.target, errHidden, usedMemory(r))
	}
	return sum, nil
}

// sameNumbers reports whether the list has the process numbers of this PID namespace. In the host's
// namespace it always has, so a process found there is the right one. In a container some drivers
// translate the numbers; then every listed process exists here. If they do not, a number may match
// by chance, but other listed processes then do not exist here. And if the process was not found,
// such a stranger may be it under another number.
func (w *watcher) sameNumbers(list map[int]alloc.Bytes, found bool) bool {
	host := w.table.hostNumbers()
	if host && found {
		return true
	}
	for pid := range list {
		if !w.table.exists(pid) {
			w.translated = false
			return false
		}
	}
	w.translated = w.translated || found
	return host || w.translated
}

func usedMemory(r *Reading) alloc.Bytes {
	if used, ok := r.bytes(MemoryUsed); ok && r.Scope != ofHost {
		return used
	}
	return 0
}

// belongs reports whether pid is the target or one of its family.
func (w *watcher) belongs(pid int) bool {
	if pid == w.target.PID {
		return true
	}
	if !w.target.Children {
		return false
	}
	path := make(map[int]uint64)
	for p := pid; p > 1; {
		ppid, started, ok := w.table.parent(p)
		if !ok {
			return false
		}
		if known, in := w.family[p]; in && known == started {
			maps.Copy(w.family, path)
			return true
		}
		if _, loop := path[p]; loop {
			return false
		}
		path[p] = started
		p = ppid
	}
	return false
}

func bytesOf(n uint64) alloc.Bytes { return alloc.Bytes(min(n, math.MaxInt64)) }
