package attach

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	wanted  []string // as functions have them: "" is libcuda

	mu     sync.Mutex
	files  []os.FileInfo
	pids   map[int]bool
	failed map[string]bool // what could not be probed is tried once
}

const maxFailed = 1 << 10

// loader stands for the libraries that have dlopen and dlclose, which are probed to know when code comes and goes. Before version 2.34
// of the GNU C library they are in one of their own.
const loader = "libc.so"

var loaders = []string{"libc.so.6", "libdl.so.2"}

func newLibraries(all *shared, to feed, functions []function, runs *python.Processes) *libraries {
	l := &libraries{all: all, feed: to, pythons: runs, stopped: make(chan struct{}), pids: make(map[int]bool), failed: make(map[string]bool)}
	for _, f := range functions {
		if !slices.Contains(l.wanted, f.library) {
			l.wanted = append(l.wanted, f.library)
		}
	}
	return l
}

// stop ends the search; nothing is probed any more.
func (l *libraries) stop() {
	close(l.stopped)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pids = nil
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

// probe probes a file, once. The caller holds l.mu.
func (l *libraries) probe(path, library string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(l.files, func(f os.FileInfo) bool { return os.SameFile(f, info) }) {
		return nil
	}
	if err := l.feed.library(path, library); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	l.files = append(l.files, info)
	return nil
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
		err := l.probe(path, library)
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

// search looks for other files in the processes until the watcher is closed.
func (l *libraries) search() {
	ticker := time.NewTicker(100 * time.Millisecond)
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
			if !ok {
				continue
			}
			path, known := symbols.InRoot(pid, m.Path), len(l.files)
			if l.failed[path] {
				continue
			}
			if err := l.probe(path, library); err != nil {
				if len(l.failed) == maxFailed {
					clear(l.failed)
				}
				l.failed[path] = true
				if library == loader {
					continue
				}
				return late, fmt.Errorf("process %d: %w", pid, err)
			}
			if len(l.files) > known && library != loader {
				late[pid] = m.Path
			}
		}
	}
	return late, nil
}

// found notes that a process had called a library that was not watched yet. It asks the Driver, so the
// caller does not hold the lock.
func (l *libraries) found(pid int, path string) {
	before := askHeld(l.all.driver, pid)
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.all.late[uint32(pid)] == nil {
		l.all.late[uint32(pid)] = before
		l.all.doubt(time.Since(l.all.start), fmt.Sprintf("process %d had loaded %s before it was found: name its path", pid, path))
	}
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
	for _, ldconfig := range []string{"/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"} {
		out, err := exec.Command(ldconfig, "-p").Output()
		if err != nil {
			continue
		}
		for line := range bytes.Lines(out) { // libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
			if name, path, ok := strings.Cut(strings.TrimSpace(string(line)), " => "); ok && (strings.HasPrefix(name, library+" ") || strings.HasPrefix(name, library+".")) && !is32(name) {
				all = append(all, path)
			}
		}
		break
	}
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"} {
		all = append(append(all, filepath.Join(dir, library)), versions(filepath.Join(dir, library))...)
	}
	return all
}

// is32 tells the library of 32-bit programs by what ldconfig says of it.
func is32(name string) bool { return !strings.Contains(name, "64") }

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
