package attach

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/linked"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// libraries are the probed files, of libcuda and of the libraries that Config.Functions names, and
// the processes that may load more of them.
type libraries struct {
	all     *shared
	feed    feed
	pythons *python.Processes
	stopped chan struct{}

	functions []function
	wanted    []string // as these have them: "" is libcuda

	mu     sync.Mutex
	files  []probed
	pids   map[int]bool
	failed map[string]bool // what could not be probed is tried once
	exists map[string]bool // the wanted libraries of which a file was found
}

// probed is a file whose functions have probes. Of a program that began later, no call is missed.
type probed struct {
	file  os.FileInfo
	since uint64 // by the clock of the events
}

const maxFailed = 1 << 10

// loaders are the files of loader. Before version 2.34 of the GNU C library its functions are in one of their own.
var loaders = []string{"libc.so.6", "libdl.so.2"}

func newLibraries(all *shared, to feed, functions []function, runs *python.Processes) *libraries {
	l := &libraries{all: all, feed: to, pythons: runs, functions: functions, stopped: make(chan struct{}), pids: make(map[int]bool), failed: make(map[string]bool), exists: make(map[string]bool)}
	for _, f := range functions {
		if !slices.Contains(l.wanted, f.library) {
			l.wanted = append(l.wanted, f.library)
		}
	}
	return l
}

// stop ends the search; nothing is probed any more. It returns the libraries of which no file was found.
func (l *libraries) stop() (missing []string) {
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

func (l *libraries) add(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pids != nil { // not stopped
		l.pids[pid] = true
	}
}

func (l *libraries) remove(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pids, pid)
}

// probe probes a file, once. isNew says that it is a library that is watched, and was not probed before. The caller holds l.mu.
func (l *libraries) probe(path, library string) (its probed, isNew bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return its, false, err
	}
	l.exists[library] = true
	if i := slices.IndexFunc(l.files, func(f probed) bool { return os.SameFile(f.file, info) }); i >= 0 {
		return l.files[i], false, nil
	}
	l.findSilent(path, library)
	if err := l.feed.library(path, library); err != nil {
		return its, false, fmt.Errorf("%s: %w", path, err)
	}
	its = probed{info, monotonic()}
	l.files = append(l.files, its)
	return its, library != loader, nil
}

// findSilent notes the functions of a library of which its file says that they return nothing.
func (l *libraries) findSilent(path, library string) {
	for i, f := range l.functions {
		if f.library == library && f.effect == hands && !f.returned && !f.void && symbols.ReturnsNothing(path, f.symbols[0]) {
			l.all.mu.Lock()
			l.all.silent[i] = true
			l.all.mu.Unlock()
		}
	}
}

// probeFirst probes libraries before any process loads them. For libcuda these are the given files,
// if there are any.
func (l *libraries) probeFirst(given []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, library := range l.wanted {
		paths := given
		switch {
		case library == "" && paths == nil:
			paths = usualLibraries("libcuda.so.1")
		case strings.Contains(library, "/"):
			paths = append([]string{library}, versions(library)...)
		case library != "":
			paths = usualLibraries(library)
		}
		certain := library == "" && given != nil || strings.Contains(library, "/")
		if err := l.probeAny(library, paths, certain); err != nil {
			return err
		}
	}
	for _, library := range loaders {
		_ = l.probeAny(loader, usualLibraries(library), false) // without it, code that takes the place of other is known late
	}
	return nil
}

// probeAny probes those of a library's files that exist, or all of them if certain. It is no error
// if none exists: a process may have its own copy.
func (l *libraries) probeAny(library string, paths []string, certain bool) error {
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

// search looks for other files in the processes, at intervals, until the watcher is closed.
func (l *libraries) search(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-l.stopped:
			return
		case <-ticker.C:
			if err := l.look(); err != nil {
				l.all.mu.Lock()
				l.all.doubt(time.Since(l.all.start), err.Error())
				l.all.mu.Unlock()
			}
		}
	}
}

// look finds files that are not probed yet, and notes whose they are.
func (l *libraries) look() error {
	late, err := l.find()
	for pid, path := range late {
		l.found(pid, path)
	}
	return err
}

// find probes the files that the processes have loaded. It returns the processes that had loaded a
// file before it was probed.
func (l *libraries) find() (late map[int]string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late = make(map[int]string)
	for pid := range maps.Keys(l.pids) {
		at := time.Now()
		mappings, err := symbols.ReadMaps(pid)
		if err != nil {
			continue // it has ended
		}
		l.pythons.Look(pid, mappings, at)
		for _, m := range mappings {
			library, ok := l.of(m.Path)
			file := symbols.InRoot(pid, m.Path)
			if !ok || l.failed[file] {
				continue
			}
			its, isNew, err := l.probe(file, library)
			if errors.Is(err, fs.ErrNotExist) && hasEnded(pid) { // since its maps were read: it shows no files any more
				its, isNew, err = l.probe(m.Path, library)
			}
			if err != nil {
				if len(l.failed) == maxFailed {
					clear(l.failed)
				}
				l.failed[file] = true
				if library == loader {
					continue
				}
				return late, fmt.Errorf("process %d: %w", pid, err)
			}
			if isNew {
				late[pid] = m.Path
				l.holders(its, m.Path, late)
			}
		}
	}
	return late, nil
}

// begins probes what a process's program, which it has just begun, is linked with: as a rule before the dynamic loader has loaded it.
// Calls that may have come before the probes are a doubt, also of a program that is gone by now.
func (l *libraries) begins(of program, file string) {
	pid := int(of.pid)
	fresh := l.linked(linked.OfProcess(pid), of.number)
	if !l.runs(of) { // so that was less, or another program's
		if _, err := os.Stat(file); err != nil || !filepath.IsAbs(file) {
			l.all.mu.Lock()
			l.all.doubt(time.Since(l.all.start), "a program ended before it was seen what it is linked with: name the files of libraries that programs bring along (--library, --functions)")
			l.all.mu.Unlock()
		}
		maps.Copy(fresh, l.linked(linked.OfCommand(file, "", os.Environ()), of.number))
	}
	for path, its := range fresh {
		if has(pid, its) || !l.runs(of) {
			l.found(pid, path)
		}
	}
}

// runs reports whether a process still runs a program, and has closed no library of it.
func (l *libraries) runs(of program) bool {
	_, since, ok := l.feed.code(int(of.pid))
	return ok && since == uint32(of.number) && !hasEnded(int(of.pid))
}

// hasEnded reports whether a process runs nothing any more; its parent may not have asked for its end yet.
func hasEnded(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err != nil
}

// linked probes what a program is linked with, and returns what was not probed before it began. What is wrong with a file is said when
// it is loaded.
func (l *libraries) linked(with linked.Program, began uint64) map[string]probed {
	fresh, late := make(map[string]probed), make(map[int]string)
	for _, path := range with.Libraries() {
		library, ok := l.of(path)
		if !ok {
			continue
		}
		l.mu.Lock()
		if l.pids != nil { // not stopped
			its, isNew, err := l.probe(filepath.Join(with.Root, path), library)
			if isNew {
				l.holders(its, path, late)
			}
			if err == nil && library != loader && its.since > began {
				fresh[path] = its
			}
		}
		l.mu.Unlock()
	}
	for pid, path := range late {
		l.found(pid, path)
	}
	return fresh
}

// holders adds the processes that have loaded a file. The caller holds l.mu.
func (l *libraries) holders(its probed, path string, to map[int]string) {
	for pid := range l.pids {
		if has(pid, its) {
			to[pid] = path
		}
	}
}

// has reports whether a process has loaded a file.
func has(pid int, its probed) bool {
	mappings, _ := symbols.ReadMaps(pid)
	return slices.ContainsFunc(mappings, func(m symbols.Mapping) bool {
		info, err := os.Stat(symbols.InRoot(pid, m.Path))
		return err == nil && os.SameFile(info, its.file)
	})
}

// found notes that a process had called a library that was not watched yet. It asks the Driver, so the
// caller does not hold the lock. The driver's own library has made contexts, others have not.
func (l *libraries) found(pid int, path string) {
	before := askHeld(l.all.driver, pid)
	library, _ := l.of(path)
	before.unseen = library == ""
	_, gone := os.Stat(fmt.Sprintf("/proc/%d", pid))
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.all.late[uint32(pid)] != nil {
		return
	}
	if gone == nil { // else another process may have its number
		l.all.late[uint32(pid)] = before
	}
	l.all.doubt(time.Since(l.all.start), fmt.Sprintf("process %d had loaded %s before it was found: name its path", pid, path))
}

// of returns which of the wanted libraries the file at path is.
func (l *libraries) of(path string) (library string, ok bool) {
	if slices.Contains(loaders, filepath.Base(path)) {
		return loader, true
	}
	for _, library := range l.wanted {
		switch name := cmp.Or(library, "libcuda.so"); {
		case strings.Contains(name, "/") && (path == name || slices.Contains(versions(name), path)),
			filepath.Base(path) == name, strings.HasPrefix(filepath.Base(path), name+"."):
			return library, true
		}
	}
	return "", false
}

// versions returns the files beside lib.so that are named lib.so.1 and the like. They are the same file as a rule, and copies of it in
// Python's packages.
func versions(library string) []string {
	all, _ := filepath.Glob(escaped.Replace(library) + ".[0-9]*") // the pattern is well formed
	return all
}

var escaped = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// usualLibraries returns the files of that name, and its versions, that the dynamic loader would find.
func usualLibraries(library string) (all []string) {
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		all = append(append(all, filepath.Join(dir, library)), versions(filepath.Join(dir, library))...)
	}
	for name, paths := range linked.ReadCache("/etc/ld.so.cache") {
		if name == library || strings.HasPrefix(name, library+".") {
			all = append(all, paths...)
		}
	}
	for _, dir := range slices.Concat(linked.Folders, []string{"/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"}) {
		all = append(append(all, filepath.Join(dir, library)), versions(filepath.Join(dir, library))...)
	}
	return all
}

// descendants returns the processes that a process started, and all that these started.
func descendants(pid int) (all []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], child)
		}
	}
	todo := children[pid]
	for len(todo) > 0 {
		all, todo = append(all, todo[0]), append(todo[1:], children[todo[0]]...)
	}
	return all
}
