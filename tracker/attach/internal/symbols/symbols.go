// Package symbols names the code of another process: the functions and lines at the addresses
// of a call stack. It reads the process's mappings, the symbol tables and DWARF of the files in
// them, and what programs that make their own code write about it. It reads no memory of the
// process, and never writes anything.
package symbols

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Symbolizer names the code of one process. It is for one goroutine at a time.
type Symbolizer struct {
	pid     int
	most    int // the longest stack: one with this many addresses may have been cut
	maps    []Mapping
	changed func()             // called when addresses have come to mean something else
	images  map[string]*loaded // nil of a file that could not be read
	tables  map[uint64]*table  // by the start of a mapping
	python  perfMap
}

// New returns a Symbolizer for a process. It begins with the mappings that the process had
// before: the process may be gone by now. most is how many addresses a stack can have. changed
// is called when addresses have come to mean something else.
func New(pid, most int, before []Mapping, changed func()) *Symbolizer {
	s := &Symbolizer{pid: pid, most: most, maps: before, changed: changed, images: make(map[string]*loaded), tables: make(map[uint64]*table), python: perfMap{pid: pid}}
	s.reload()
	return s
}

// reload reads the maps again, if the process is still alive.
func (s *Symbolizer) reload() {
	if now, err := ReadMaps(s.pid); err == nil && len(now) > 0 {
		s.Update(now)
	}
}

// Update says which mappings the process has by now.
func (s *Symbolizer) Update(now []Mapping) {
	for _, before := range s.maps {
		if at, ok := find(now, before.start); before.file() && (!ok || at.inode != before.inode || at.device != before.device) {
			s.changed()
			break
		}
	}
	s.maps = now
	clear(s.tables)
}

// Why a stack may end before its outermost frame: what Resolve says of the last one.
const (
	Whole   = "" // it has all of them
	NoTable = "%s keeps no frame pointers, and has no table of its callers"
	TooLong = "what lies beyond %s is further up than 16 KiB, and is not read"
)

// Python is what a thread runs of Python.
type Python struct {
	Image string        // the path of the interpreter's file
	Runs  [][]mem.Frame // innermost first: a run of the interpreter's loop each
}

// replace puts functions of Python in the place of a frame of its interpreter: those that the loop runs in the place of the loop,
// and none in the place of others.
func (p *Python) replace(native []mem.Frame) (python []mem.Frame) {
	if len(p.Runs) > 0 && strings.HasPrefix(native[len(native)-1].Function, "_PyEval_EvalFrameDefault") {
		python, p.Runs = p.Runs[0], p.Runs[1:]
	}
	return python
}

// Resolve names return addresses, innermost first. If the stack does not reach an outermost frame,
// a last frame in parentheses says why. Python functions stand where their interpreter's frame is;
// if that frame is missing, they come at the end.
func (s *Symbolizer) Resolve(addresses []uint64, end string, python *Python) mem.Stack {
	stack := make(mem.Stack, 0, len(addresses)+1)
	for _, at := range addresses {
		frames := s.frames(at - 1) // within the call, not after it
		if m, ok := find(s.maps, at-1); ok && python != nil {
			switch {
			case m.Path == python.Image:
				frames = python.replace(frames)
			case !m.file() && frames[0].File != m.Path: // what -X perf makes to call a function
				frames = nil
			}
		}
		stack = append(stack, frames...)
	}
	stack = s.ended(stack, addresses, end)
	if python != nil {
		for _, run := range python.Runs {
			stack = append(stack, run...)
		}
	}
	return stack
}

// ended returns the stack with a last frame in parentheses that says why it has no more frames, if it
// should have some.
func (s *Symbolizer) ended(stack mem.Stack, addresses []uint64, end string) mem.Stack {
	if len(addresses) == s.most {
		return append(stack, mem.Frame{Function: fmt.Sprintf("(more than %d frames: the others are left out)", s.most)})
	}
	for len(stack) > 1 && strings.HasPrefix(stack[len(stack)-1].Function, "0x") {
		stack = stack[:len(stack)-1]
	}
	if len(stack) == 0 {
		return stack
	}
	if last := stack[len(stack)-1]; end != Whole && !outermost(last) {
		where := last.Function
		if last.File != "" {
			where = path.Base(last.File)
		}
		stack = append(stack, mem.Frame{Function: "(the stack ends early: " + fmt.Sprintf(end, where) + ")"})
	}
	return stack
}

// Starts reports whether a return address is in a function that starts a program or a thread: one
// that calls main or a thread's first function.
func (s *Symbolizer) Starts(address uint64) bool {
	frames := s.frames(address - 1)
	last := frames[len(frames)-1]
	return last.Function != "main" && outermost(last)
}

// outermost reports whether a frame begins a thread or a program, or is main.
func outermost(f mem.Frame) bool {
	switch f.Function {
	case "_start", "main", "start_thread", "clone", "clone3", "<module>":
		return true
	}
	base := path.Base(f.File)
	return strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(base, "libc.so") || strings.HasPrefix(base, "libpthread.so") ||
		strings.HasPrefix(base, "libc-2") || strings.HasPrefix(base, "ld-musl")
}

// frames returns the function at an address, after the functions that were inlined into it.
func (s *Symbolizer) frames(address uint64) []mem.Frame {
	m, ok := find(s.maps, address)
	if !ok {
		s.reload()
		if m, ok = find(s.maps, address); !ok {
			return []mem.Frame{{Function: fmt.Sprintf("%#x", address)}}
		}
	}
	if !m.file() {
		if f, ok := s.python.frame(address); ok {
			return []mem.Frame{f}
		}
		return []mem.Frame{{Function: fmt.Sprintf("%#x", address), File: m.Path}}
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
	return []mem.Frame{{Function: fmt.Sprintf("%s+%#x", path.Base(m.Path), offset), File: m.Path}}
}

// maxKnown is how many addresses of a file are remembered.
const maxKnown = 1 << 16

// loaded is an image with the answers it has given.
type loaded struct {
	image
	known map[uint64][]mem.Frame // by offset in the file
	table *unwind.Table          // nil if the file has none
}

// table is the unwind table of a mapping's file.
type table struct {
	Mapping
	of *loaded // nil if it could not be read
}

// Table returns the unwind table for the code at an address, and the address as that table counts
// it. It is an unwind.Finder.
func (s *Symbolizer) Table(pc uint64) (t *unwind.Table, address uint64, code bool) {
	m, ok := find(s.maps, pc)
	if !ok {
		return nil, 0, false
	}
	its := s.tables[m.start]
	if its == nil {
		its = &table{Mapping: m}
		if m.file() {
			its.of = s.image(m)
		}
		s.tables[m.start] = its
	}
	if its.of == nil {
		return nil, 0, true
	}
	return its.of.table, its.of.address(pc - m.start + m.offset), true
}

// image opens the file of a mapping, once; nil if that is not possible.
func (s *Symbolizer) image(m Mapping) *loaded {
	key := fmt.Sprintf("%s %d", m.device, m.inode)
	if img, ok := s.images[key]; ok {
		return img
	}
	var img *loaded
	for _, name := range []string{fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.start, m.end), InRoot(s.pid, m.Path), m.Path} {
		if f, err := os.Open(name); err == nil {
			if opened, table, err := openImage(f, m.Path); err == nil {
				img = &loaded{opened, make(map[uint64][]mem.Frame), table}
			}
			break
		}
	}
	s.images[key] = img
	return img
}

// InRoot is a path of a process that may be in a container.
func InRoot(pid int, path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
