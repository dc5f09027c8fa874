package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/linked"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// Discovery finds the files of libcuda and of the libraries of other functions, and has their functions
// probed. It watches the processes that may load more of them.
type Discovery struct {
	report  Reporter
	events  event.Source
	pythons *python.Processes
	stopped chan struct{}

	functions []event.Function
	wanted    []string // the libraries of functions: "" is libcuda

	mu     sync.Mutex
	files  []probed
	pids   map[int]bool
	failed map[string]bool // files that could not be probed, which are tried once
	exists map[string]bool // wanted libraries with a file
	loaded map[int]loaded  // by process; nil unless every process is watched
	given  bool            // the files of libcuda were given

	folders []string // that processes were in, latest last
}

// Reporter takes what a discovery finds out. Any goroutine may call its methods, and holds no lock.
type Reporter interface {
	// Warn takes a reason why the ledgers may be inaccurate from now on.
	Warn(reason string)
	// LoadedDriver learns that a process has loaded libcuda.
	LoadedDriver()
	// LoadedEarly takes a process that may have called a library, or libcuda, before it was probed.
	LoadedEarly(pid int, path string, isDriver bool)
	// ReturnsNothing takes the index of a function that returns nothing according to its file.
	ReturnsNothing(function int)
}

// probed is a file whose functions have probes. No call of a program that started later is missed.
type probed struct {
	file    os.FileInfo
	library string
	since   uint64 // by the clock of the events
}

const maxFailed = 1 << 10

// loaders are the files of event.Loader. Before glibc 2.34 dlopen is in libdl.
var loaders = []string{"libc.so.6", "libdl.so.2"}

// NewDiscovery returns a discovery of the libraries of functions. It probes nothing yet.
func NewDiscovery(report Reporter, to event.Source, functions []event.Function, runs *python.Processes) *Discovery {
	l := &Discovery{report: report, events: to, pythons: runs, functions: functions, stopped: make(chan struct{}), pids: make(map[int]bool), failed: make(map[string]bool), exists: make(map[string]bool)}
	for _, f := range functions {
		if !slices.Contains(l.wanted, f.Library) {
			l.wanted = append(l.wanted, f.Library)
		}
	}
	return l
}

// Stop ends the discovery: nothing is probed any more. It returns the libraries without a file.
func (l *Discovery) Stop() (missing []string) {
	close(l.stopped)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pids = nil
	for _, library := range l.wanted {
		if library != "" && !l.exists[library] {
			missing = append(missing, library)
		}
	}
	return missing
}

// Add adds a process to those that may load a library.
func (l *Discovery) Add(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pids != nil { // not stopped
		l.pids[pid] = true
	}
}

func (l *Discovery) remove(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pids, pid)
	delete(l.loaded, pid)
}

// probe probes a file, once. isNew is true for a watched library that had no probes before. The
// caller holds l.mu.
func (l *Discovery) probe(path, library string) (its probed, isNew bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return its, false, err
	}
	l.exists[library] = true
	if i := slices.IndexFunc(l.files, func(f probed) bool { return os.SameFile(f.file, info) }); i >= 0 {
		return l.files[i], false, nil
	}
	l.findVoidResults(path, library)
	if err := l.events.ProbeLibrary(path, library); err != nil {
		return its, false, fmt.Errorf("%s: %w", path, err)
	}
	its = probed{info, library, event.Now()}
	l.files = append(l.files, its)
	return its, library != event.Loader, nil
}

// findVoidResults records the functions that return nothing according to a library's file.
func (l *Discovery) findVoidResults(path, library string) {
	for i, f := range l.functions {
		if f.Library == library && f.Effect == event.LibraryAllocates && !f.Returned && !f.Void && symbols.ReturnsNothing(path, f.Symbols[0]) {
			l.report.ReturnsNothing(i)
		}
	}
}

// ProbeFirst probes libraries before any process loads them. given are the files of libcuda; if nil,
// they are searched for.
func (l *Discovery) ProbeFirst(given []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.given = given != nil
	for _, library := range l.wanted {
		paths := given
		switch {
		case library == "" && paths == nil:
			paths = linked.DefaultLibraries("libcuda.so.1")
		case strings.Contains(library, "/"):
			paths = append([]string{library}, linked.Versions(library)...)
		case library != "":
			paths = linked.DefaultLibraries(library)
		}
		certain := library == "" && given != nil || strings.Contains(library, "/")
		if err := l.probeAny(library, paths, certain); err != nil {
			return err
		}
	}
	for _, library := range loaders {
		_ = l.probeAny(event.Loader, linked.DefaultLibraries(library), false) // without it, replaced code is noticed late
	}
	return nil
}

// probeAny probes those of a library's files that exist, or all of them if certain. If none exists that
// is no error: a process may have its own copy.
func (l *Discovery) probeAny(library string, paths []string, certain bool) error {
	var errs []error
	known := len(l.files)
	for _, path := range paths {
		_, _, err := l.probe(path, library)
		if err != nil && certain {
			return err
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(l.files) == known {
		return errors.Join(errs...)
	}
	return nil
}

// ScanLoop scans the processes at intervals until the watcher is closed.
func (l *Discovery) ScanLoop(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-l.stopped:
			return
		case <-ticker.C:
			if err := l.Scan(); err != nil {
				l.report.Warn(err.Error())
			}
		}
	}
}

// Scan probes files that processes have loaded, and records the processes whose calls may be missing.
func (l *Discovery) Scan() error {
	late, err := l.probeLoaded()
	for pid, path := range late {
		l.noteLate(pid, path)
	}
	return err
}

// probeLoaded probes the files that processes have loaded. It returns the processes that loaded a file
// before it was probed.
func (l *Discovery) probeLoaded() (late map[int]string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late = make(map[int]string)
	if l.loaded != nil {
		return late, nil // they are found by Mapped
	}
	for pid := range maps.Keys(l.pids) {
		at := time.Now()
		mappings, err := procfs.ReadMaps(pid)
		if err != nil {
			continue // the process has ended
		}
		l.pythons.Detect(pid, mappings, at)
		for _, m := range mappings {
			library, ok := l.libraryOf(m.Path)
			file := procfs.InRoot(pid, m.Path)
			if ok && library == "" {
				l.report.LoadedDriver()
			}
			if !ok || l.failed[file] {
				continue
			}
			its, isNew, err := l.probe(file, library)
			if errors.Is(err, fs.ErrNotExist) && procfs.HasEnded(pid) { // after its maps were read: its root is gone
				its, isNew, err = l.probe(m.Path, library)
			}
			if err != nil {
				if len(l.failed) == maxFailed {
					clear(l.failed)
				}
				l.failed[file] = true
				if library == event.Loader {
					continue
				}
				return late, fmt.Errorf("process %d: %w", pid, err)
			}
			if isNew {
				late[pid] = m.Path
				l.addProcessesWith(its, m.Path, late)
			}
		}
	}
	return late, nil
}

// ProgramStarted probes the libraries that a program which has just started is linked with, usually
// before the dynamic loader loads them. If calls may have come before the probes, it adds a warning,
// even if the program has ended by now.
func (l *Discovery) ProgramStarted(of event.Program, file event.File) {
	pid := int(of.PID)
	l.addFolder(fmt.Sprintf("/proc/%d/cwd", pid))
	fresh := l.ProbeLinked(linked.OfProcess(pid), of.Number)
	if !l.stillRuns(of) { // so the list may be incomplete, or another program's
		path := l.findFile(file)
		if path == "" {
			l.report.Warn("a program ended before it was seen what it is linked with: name the files of libraries that programs bring along (--library, --functions)")
		}
		maps.Copy(fresh, l.ProbeLinked(linked.OfCommand(cmp.Or(path, file.Path), "", os.Environ()), of.Number))
	}
	for path, its := range fresh {
		if hasLoaded(pid, its) || !l.stillRuns(of) {
			l.noteLate(pid, path)
		}
	}
}

// findFile returns the path of the file of a program that has ended; "" if it is unknown. A relative
// path is tried in the folders that processes were in, such as the shell that started it. The inode
// proves that it is the file, and not another with the same path.
func (l *Discovery) findFile(file event.File) string {
	for _, folder := range l.foldersFor(file.Path) {
		path := filepath.Join(folder, file.Path)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && procfs.Inode(info) == file.Inode {
			return path
		}
	}
	return ""
}

func (l *Discovery) foldersFor(path string) []string {
	if filepath.IsAbs(path) {
		return []string{"/"}
	}
	l.mu.Lock()
	pids := slices.Collect(maps.Keys(l.pids))
	l.mu.Unlock()
	for _, pid := range pids { // they may have changed it
		l.addFolder(fmt.Sprintf("/proc/%d/cwd", pid))
	}
	l.addFolder("/proc/self/cwd")
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.folders)
}

// addFolder records a folder that a process is in; the path is a link to it.
func (l *Discovery) addFolder(link string) {
	folder, err := os.Readlink(link)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.folders, folder); i >= 0 {
		l.folders = slices.Delete(l.folders, i, i+1)
	}
	l.folders = append(l.folders, folder)
	if len(l.folders) > maxFolders {
		l.folders = slices.Delete(l.folders, 0, 1)
	}
}

const maxFolders = 64

// stillRuns reports whether a process still runs a program, and has unmapped none of its code.
func (l *Discovery) stillRuns(of event.Program) bool {
	_, since, ok := l.events.CodeGeneration(int(of.PID))
	return ok && since == uint32(of.Number) && !procfs.HasEnded(int(of.PID))
}

// ProbeLinked probes the libraries that a program is linked with, and returns those that were not
// probed before it started. Errors of a file are reported when it is loaded.
func (l *Discovery) ProbeLinked(with linked.Program, began uint64) map[string]probed {
	fresh, late := make(map[string]probed), make(map[int]string)
	for _, path := range with.Libraries() {
		library, ok := l.libraryOf(path)
		if !ok {
			continue
		}
		l.mu.Lock()
		if l.pids != nil { // not stopped
			its, isNew, err := l.probe(filepath.Join(with.Root, path), library)
			if isNew {
				l.addProcessesWith(its, path, late)
			}
			if err == nil && library == "" {
				l.report.LoadedDriver()
			}
			if err == nil && library != event.Loader && its.since > began {
				fresh[path] = its
			}
		}
		l.mu.Unlock()
	}
	for pid, path := range late {
		l.noteLate(pid, path)
	}
	return fresh
}

// addProcessesWith adds to to the processes that have loaded a file. The caller holds l.mu.
func (l *Discovery) addProcessesWith(its probed, path string, to map[int]string) {
	for pid := range l.pids {
		if hasLoaded(pid, its) {
			to[pid] = path
		}
	}
}

// hasLoaded reports whether a process has loaded a file.
func hasLoaded(pid int, its probed) bool {
	mappings, _ := procfs.ReadMaps(pid)
	return slices.ContainsFunc(mappings, func(m procfs.Mapping) bool {
		info, err := os.Stat(procfs.InRoot(pid, m.Path))
		return err == nil && os.SameFile(info, its.file)
	})
}

// noteLate reports that a process may have called a library before it was probed. The caller must not
// hold a lock.
func (l *Discovery) noteLate(pid int, path string) {
	library, _ := l.libraryOf(path)
	l.report.LoadedEarly(pid, path, library == "")
}

// libraryOf returns the wanted library that the file at path belongs to.
func (l *Discovery) libraryOf(path string) (library string, ok bool) {
	switch {
	case slices.Contains(loaders, filepath.Base(path)):
		return event.Loader, true
	case strings.HasPrefix(filepath.Base(filepath.Dir(path)), event.ShimFolder):
		return "", false
	}
	for _, library := range l.wanted {
		switch name := cmp.Or(library, "libcuda.so"); {
		case strings.Contains(name, "/") && (path == name || slices.Contains(linked.Versions(name), path)),
			filepath.Base(path) == name, strings.HasPrefix(filepath.Base(path), name+"."):
			return library, true
		}
	}
	return "", false
}
