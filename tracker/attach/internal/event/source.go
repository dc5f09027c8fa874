package event

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/container"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Loader stands for the libraries with dlopen and dlclose. They are probed to learn when code is
// mapped and unmapped.
const Loader = "libc.so"

// ShimFolder begins the name of a folder that holds a libcuda.so.1 of ours, which --preload puts in front of the
// driver's. It has no probes of another watcher: it reads its callers' return addresses, which the return
// probes would replace, and each of its calls is one of the driver, too.
const ShimFolder = "shim-"

// Source delivers events: probes in the kernel do, or the preloaded library in the programs.
type Source interface {
	// Watch begins to report on a process and on all that it starts.
	Watch(pid int) error
	// Unwatch ends the reports on a process. Processes that it started are still reported on.
	Unwatch(pid int)
	// CodeGeneration returns a process's current code generation, and the generation since which no
	// code was unmapped. ok is false if the process has ended.
	CodeGeneration(pid int) (generation, since uint32, ok bool)
	// ProbeLibrary probes the functions of a watched library in the file at path.
	ProbeLibrary(path, library string) error
	// Environ returns the environment of a program that is to be watched.
	Environ(env []string) []string

	// SetPythonLayout sets the layout of a process's Python interpreter. ClearPythonLayout removes it
	// when the process has ended or runs another program.
	SetPythonLayout(pid int, l python.Layout) error
	ClearPythonLayout(pid int)
	// ReadExecs reads execs ahead of other events, because a short-lived process may be gone when its
	// event is applied. For each program that starts it calls begins with its file, and
	// urgent in a goroutine whose thread has a raised priority.
	ReadExecs(begins func(of Program, file File), urgent func(pid int))

	// LoadUnwindRule loads the unwind rule of a return address: from now on its frame needs no copy of
	// the stack. The rules of all processes are MaxUnwindRules at most.
	LoadUnwindRule(pid int, generation uint32, pc uint64, s unwind.CompactRule)
	// RemoveUnwindRules removes all rules of a process, whose code has changed.
	RemoveUnwindRules(pid int)

	// Next waits for an event. The error is ErrFlushed or os.ErrClosed; any other says what was lost,
	// and the next call may succeed.
	Next(e *Event) error
	// Flush makes Next return ErrFlushed after all events of before the call, once begins has returned
	// for their programs.
	Flush() error
	// Lost returns the number of dropped events, and the time of the first.
	Lost() (count, since uint64)

	// Detach stops new events. Those that exist can still be read.
	Detach()
	// Interrupt makes Next return os.ErrClosed.
	Interrupt()
	Close()
}

// MaxUnwindRules is the maximum number of loaded unwind rules of all processes.
const MaxUnwindRules = 1 << 16

// ErrFlushed is the error of Source.Next after Source.Flush.
var ErrFlushed = errors.New("all events that there were have been read")

// Program identifies one exec of a process. Its number is the time of the exec by the clock of the
// events.
type Program struct {
	PID    uint32
	Number uint64
}

// File is the file of a program, as the kernel knew it when the program started.
type File struct {
	Path  string // relative paths are relative to the folder that the process was in
	Inode uint64 // 0 if unknown
}

// StartRecord is what was read of a process when its program started. The process may be gone when its
// first event is read.
type StartRecord struct {
	Origin snapshot.Origin
	Since  uint32 // no code was unmapped since this generation
	Cgroup uint64 // ID of its control group at its fork or exec; 0 if unknown
	Comm   string // see Event.Comm; used if the file's name is unknown
	procfs.Maps
}

// ReadStartRecord reads what a process has run since a program started; nil if the process is gone, or
// its code may have changed since.
func ReadStartRecord(pid int, from Source, since uint32) *StartRecord {
	if _, now, ok := from.CodeGeneration(pid); ok && now != since {
		return nil
	}
	mappings, err := procfs.ReadMaps(pid)
	if err != nil || len(mappings) == 0 {
		return nil
	}
	record := &StartRecord{Origin: OriginOf(pid), Since: since, Maps: procfs.Maps{All: mappings}}
	generation, now, ok := from.CodeGeneration(pid)
	if ok && now != since {
		return nil
	}
	if ok && generation == since {
		record.Linked = mappings
	}
	return record
}

// OriginOf reads a process's program, host and container.
func OriginOf(pid int) snapshot.Origin {
	o := snapshot.Origin{PID: pid, Container: container.Of(pid)}
	o.Host, _ = os.Hostname()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		o.Program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	return o
}
