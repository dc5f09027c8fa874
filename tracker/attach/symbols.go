package attach

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// symbolizer names the code of one process. It is for one goroutine at a time.
type symbolizer struct {
	pid     int
	maps    []mapping
	changed func()             // called when addresses have come to mean something else
	images  map[string]*loaded // nil of a file that could not be read
	python  perfMap
}

// newSymbolizer begins with the maps that the process had before; it may be gone by now.
func newSymbolizer(pid int, before []mapping, changed func()) *symbolizer {
	s := &symbolizer{pid: pid, maps: before, changed: changed, images: make(map[string]*loaded), python: perfMap{pid: pid}}
	s.reload()
	return s
}

// reload reads the maps again, if the process is still there.
func (s *symbolizer) reload() {
	now, err := readMaps(s.pid)
	if err != nil || len(now) == 0 {
		return
	}
	for _, before := range s.maps {
		if at, ok := find(now, before.start); before.file() && (!ok || at.inode != before.inode || at.device != before.device) {
			s.changed()
			break
		}
	}
	s.maps = now
}

// resolve names return addresses, innermost first. What is no code at the end comes of a
// function that keeps no frame pointer: a frame in parentheses says so.
func (s *symbolizer) resolve(addresses []uint64) snapshot.Stack {
	stack := make(snapshot.Stack, 0, len(addresses)+1)
	for _, at := range addresses {
		stack = append(stack, s.frames(at-1)...) // within the call, not after it
	}
	if len(addresses) == maxFrames {
		return append(stack, snapshot.Frame{Function: fmt.Sprintf("(more than %d frames: the others are left out)", maxFrames)})
	}
	for len(stack) > 1 && strings.HasPrefix(stack[len(stack)-1].Function, "0x") {
		stack = stack[:len(stack)-1]
	}
	if last := stack[len(stack)-1]; !outermost(last) {
		where := last.Function
		if last.File != "" {
			where = path.Base(last.File)
		}
		stack = append(stack, snapshot.Frame{Function: fmt.Sprintf("(the stack ends early: %s keeps no frame pointers)", where)})
	}
	return stack
}

// outermost reports whether a frame begins a thread or a program.
func outermost(f snapshot.Frame) bool {
	switch f.Function {
	case "_start", "main", "start_thread", "clone", "clone3":
		return true
	}
	base := path.Base(f.File)
	return strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(base, "libc.so") || strings.HasPrefix(base, "libpthread.so") ||
		strings.HasPrefix(base, "libc-2") || strings.HasPrefix(base, "ld-musl")
}

// frames are the function at an address and, before it, those that were inlined into it.
func (s *symbolizer) frames(address uint64) []snapshot.Frame {
	m, ok := find(s.maps, address)
	if !ok {
		s.reload()
		if m, ok = find(s.maps, address); !ok {
			return []snapshot.Frame{{Function: fmt.Sprintf("%#x", address)}}
		}
	}
	if !m.file() {
		if f, ok := s.python.frame(address); ok {
			return []snapshot.Frame{f}
		}
		return []snapshot.Frame{{Function: fmt.Sprintf("%#x", address), File: m.path}}
	}
	offset := address - m.start + m.offset
	if img := s.image(m); img != nil {
		if found := img.known[offset]; found != nil {
			return found
		}
		if found := img.frames(img.address(offset)); len(found) > 0 {
			if len(img.known) == maxKnown {
				clear(img.known)
			}
			img.known[offset] = found
			return found
		}
	}
	return []snapshot.Frame{{Function: fmt.Sprintf("%s+%#x", path.Base(m.path), offset), File: m.path}}
}

// maxKnown is how many addresses of a file are remembered.
const maxKnown = 1 << 16

// loaded is an image, and what was asked of it.
type loaded struct {
	image
	known map[uint64][]snapshot.Frame // by offset in the file
}

// image opens the file of a mapping, once; nil if that is not possible.
func (s *symbolizer) image(m mapping) *loaded {
	key := fmt.Sprintf("%s %d", m.device, m.inode)
	if img, ok := s.images[key]; ok {
		return img
	}
	var img *loaded
	for _, name := range []string{fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.start, m.end), inRoot(s.pid, m.path), m.path} {
		if f, err := os.Open(name); err == nil {
			if opened, err := openImage(f, m.path); err == nil {
				img = &loaded{opened, make(map[uint64][]snapshot.Frame)}
			}
			break
		}
	}
	s.images[key] = img
	return img
}

// inRoot is a path of a process that may be in a container.
func inRoot(pid int, path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }

// perfMap is what a program that makes its own code says about it: Python with -X perf, node, java.
type perfMap struct {
	pid   int
	size  int64
	names []named
}

const maxPerfMap = 64 << 20 // bytes of the file that are read

func (p *perfMap) frame(address uint64) (snapshot.Frame, bool) {
	n, ok := findNamed(p.names, address)
	if !ok {
		p.reload()
		if n, ok = findNamed(p.names, address); !ok {
			return snapshot.Frame{}, false
		}
	}
	// Python's: py::train:/home/me/train.py
	if rest, ok := strings.CutPrefix(n.name, "py::"); ok {
		if function, file, ok := strings.Cut(rest, ":"); ok {
			return snapshot.Frame{Function: function, File: file}, true
		}
	}
	return snapshot.Frame{Function: n.name}, true
}

// reload reads the file again if it has grown.
func (p *perfMap) reload() {
	for _, name := range []string{inRoot(p.pid, fmt.Sprintf("/tmp/perf-%d.map", innerPID(p.pid))), fmt.Sprintf("/tmp/perf-%d.map", p.pid)} {
		info, err := os.Stat(name)
		if err != nil || info.Size() == p.size || info.Size() > maxPerfMap {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		p.size, p.names = info.Size(), parsePerfMap(string(text))
		return
	}
}

// parsePerfMap reads lines of start, size (both in hexadecimal) and name. Later lines count.
func parsePerfMap(text string) (all []named) {
	for line := range strings.Lines(text) {
		var n named
		var size uint64
		if _, err := fmt.Sscanf(line, "%x %x", &n.start, &size); err != nil {
			continue
		}
		if fields := strings.SplitN(strings.TrimSpace(line), " ", 3); len(fields) == 3 {
			n.end, n.name = n.start+size, fields[2]
			all = append(all, n)
		}
	}
	sortNamed(all)
	return all
}

// innerPID is the number that a process has for itself, in a container.
func innerPID(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	_, rest, _ := strings.Cut(string(status), "NSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	inner := pid
	for _, field := range strings.Fields(line) {
		fmt.Sscan(field, &inner)
	}
	return inner
}
