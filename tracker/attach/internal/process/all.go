package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// Where every process of the machine is watched, a library is found when a process maps it.

// loaded is what is known of the watched libraries that a process has mapped.
type loaded struct {
	since uint64 // when it mapped the first, by the clock of the events
	late  string // one that was mapped before it was probed; "" if there is none
}

const maxLoaded = 1 << 14

// WatchAll has the discovery look for libraries in every process, by Mapped. The processes that were added are no longer scanned.
func (l *Discovery) WatchAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded == nil {
		l.loaded = make(map[int]loaded)
	}
}

// Mapped takes a file that a process maps, and probes it if it is a watched library.
func (l *Discovery) Mapped(m event.Mapping) {
	library, ok := l.libraryOf(m.Path)
	if !ok || library == event.Loader {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pids == nil { // stopped
		return
	}
	its, known := l.loaded[m.PID]
	if !known {
		its.since = m.Time
	}
	switch file, err := l.probeIn(m.PID, m.Path, library); {
	case errors.Is(err, errProbed):
		return
	case err == nil && file.since > m.Time:
		its.late = m.Path
	}
	if library == "" {
		l.report.LoadedDriver()
	}
	if len(l.loaded) == maxLoaded { // of processes that called nothing, most of which have ended
		clear(l.loaded)
	}
	l.loaded[m.PID] = its
}

// MissedMappings looks at all processes for libraries that they have mapped: of some, Mapped was not called.
func (l *Discovery) MissedMappings() {
	for _, pid := range procfs.Processes() {
		l.HasLoaded(pid)
	}
}

// HasLoaded reports whether a process has mapped a watched library, and probes what it has mapped.
func (l *Discovery) HasLoaded(pid int) (has bool) {
	mappings, err := procfs.ReadMaps(pid)
	if err != nil {
		return false // it has ended, or is of the kernel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pids == nil { // stopped
		return false
	}
	for _, m := range mappings {
		if library, ok := l.libraryOf(m.Path); ok && library != event.Loader {
			_, err := l.probeIn(pid, m.Path, library) // an error was reported
			has = has || err == nil
		}
	}
	if has {
		l.probeLoaders(pid, mappings)
	}
	return has
}

// Joined prepares for the calls of a process that has made its first one: it looks for Python, and for the functions that unmap code.
func (l *Discovery) Joined(pid int) {
	at := time.Now()
	mappings, err := procfs.ReadMaps(pid)
	if err != nil {
		return
	}
	l.pythons.Detect(pid, mappings, at)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pids != nil { // not stopped
		l.probeLoaders(pid, mappings)
	}
}

func (l *Discovery) probeLoaders(pid int, mappings []procfs.Mapping) {
	for _, m := range mappings {
		if library, ok := l.libraryOf(m.Path); ok && library == event.Loader {
			_, _ = l.probeIn(pid, m.Path, library) // without it, replaced code is noticed late
		}
	}
}

// probeIn probes a file of a process, once. An error is reported once. The caller holds l.mu.
func (l *Discovery) probeIn(pid int, path, library string) (its probed, err error) {
	file := procfs.InRoot(pid, path)
	if l.given && library == "" {
		return l.fileAt(file)
	}
	if l.failed[file] {
		return its, errProbed
	}
	its, _, err = l.probe(file, library)
	if errors.Is(err, fs.ErrNotExist) && procfs.HasEnded(pid) { // its root is gone
		its, _, err = l.probe(path, library)
	}
	if err == nil {
		return its, nil
	}
	if len(l.failed) == maxFailed {
		clear(l.failed)
	}
	l.failed[file] = true
	if library != event.Loader && !errors.Is(err, fs.ErrNotExist) {
		l.report.Warn(fmt.Sprintf("process %d: %v", pid, err))
	}
	return its, err
}

// Probed returns since when a file is probed, by the clock of the events. The error says that it is not.
func (l *Discovery) Probed(path string) (since uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	its, err := l.fileAt(path)
	return its.since, err
}

// fileAt returns what is known of a probed file. The caller holds l.mu.
func (l *Discovery) fileAt(path string) (its probed, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return its, err
	}
	i := slices.IndexFunc(l.files, func(f probed) bool { return os.SameFile(f.file, info) })
	if i < 0 {
		return its, errProbed
	}
	return l.files[i], nil
}

var errProbed = errors.New("the file is not probed")

// FirstCall returns from when on the calls of a process were seen that joined: it began at a time by the clock of the events. early is a library
// that it may have called before that was probed; "" if there is none.
func (l *Discovery) FirstCall(pid int, began uint64) (since uint64, early string) {
	mappings, _ := procfs.ReadMaps(pid)
	l.mu.Lock()
	defer l.mu.Unlock()
	if its, ok := l.loaded[pid]; ok && its.since >= began {
		return its.since, its.late
	}
	found := false
	for _, m := range mappings {
		library, ok := l.libraryOf(m.Path)
		if !ok || library == event.Loader {
			continue
		}
		file, err := l.fileAt(procfs.InRoot(pid, m.Path))
		switch {
		case err == nil && file.since <= began:
			found = true
		case !l.given || library != "":
			return began, m.Path
		}
	}
	if found {
		return began, ""
	}
	for _, f := range l.files { // the process has ended: any of them may be the one that it called
		if f.since > began && f.library != event.Loader {
			return began, f.file.Name()
		}
	}
	return began, ""
}
