// Package symbols names the code of another process: the functions and lines at the addresses
// of a call stack. It reads the process's mappings, the symbol tables and DWARF of the files in
// them, and what programs that make their own code write about it. It reads no memory of the
// process, and never writes anything.
package symbols

import (
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Symbolizer names the code of one process. It is for one goroutine at a time.
type Symbolizer struct {
	pid     int
	most    int // how many addresses a stack can have
	maps    []Mapping
	changed func()             // called when addresses have come to mean something else
	images  map[fileID]*loaded // nil of a file that could not be read
	tables  map[uint64]*table  // by the start of a mapping
	python  perfMap
	missing map[uint64]bool // by number of the page: no code was there when the maps were read for it
}

// New returns a Symbolizer for a process. It begins with the mappings that the process had
// before: the process may be gone by now. most is how many addresses a stack can have. changed
// is called when addresses have come to mean something else.
func New(pid, most int, before []Mapping, changed func()) *Symbolizer {
	s := &Symbolizer{pid: pid, most: most, maps: before, changed: changed, images: make(map[fileID]*loaded), tables: make(map[uint64]*table), python: perfMap{pid: pid}, missing: make(map[uint64]bool)}
	s.Reload()
	return s
}

// Reload reads the maps again, if the process is still alive.
func (s *Symbolizer) Reload() {
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
	if !slices.Equal(s.maps, now) {
		s.maps = now
		clear(s.tables)
		clear(s.missing)
	}
}

// at returns the mapping that an address lies in. The maps are read again for one that is in none, once for a page: a stack that was followed
// wrongly has addresses of anything.
func (s *Symbolizer) at(address uint64) (m Mapping, ok bool) {
	const pageBits, maxMissing = 12, 1 << 12
	page := address >> pageBits
	if m, ok = find(s.maps, address); ok || s.missing[page] {
		return m, ok
	}
	s.Reload()
	if m, ok = find(s.maps, address); !ok {
		if len(s.missing) == maxMissing {
			clear(s.missing)
		}
		s.missing[page] = true
	}
	return m, ok
}

// frames returns the function at an address, after the functions that were inlined into it.
func (s *Symbolizer) frames(address uint64) []mem.Frame {
	m, ok := s.at(address)
	if !ok {
		return []mem.Frame{{Function: fmt.Sprintf("%#x", address)}}
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
	known  map[uint64][]mem.Frame // by offset in the file
	table  *unwind.Table          // nil if the file has none
	framed map[uint64]bool        // whether a function keeps a frame pointer, by where it begins
}

// table is the unwind table of a mapping's file.
type table struct {
	Mapping
	of *loaded // nil if it could not be read
}

// Table returns the unwind table for the code at an address, and the address as that table counts
// it. It is an unwind.Finder.
func (s *Symbolizer) Table(pc uint64) (t *unwind.Table, address uint64, code bool) {
	m, ok := s.at(pc)
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

// tabled reports whether a table says where the caller of the code at an address is.
func (s *Symbolizer) tabled(address uint64) bool {
	t, at, _ := s.Table(address)
	return t != nil && t.Has(at)
}

// fileID tells files apart.
type fileID struct {
	device string
	inode  uint64
}

// image opens the file of a mapping, once; nil if that is not possible.
func (s *Symbolizer) image(m Mapping) *loaded {
	key := fileID{m.device, m.inode}
	if img, ok := s.images[key]; ok {
		return img
	}
	var img *loaded
	if f, err := s.open(m); err == nil {
		if opened, table, err := openImage(f, m.Path); err == nil {
			img = &loaded{opened, make(map[uint64][]mem.Frame), table, make(map[uint64]bool)}
		}
	}
	s.images[key] = img
	return img
}

// open opens the file of a mapping: as the process sees it or, if the process has ended, by its
// path.
func (s *Symbolizer) open(m Mapping) (f *os.File, err error) {
	for _, name := range []string{fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.start, m.end), InRoot(s.pid, m.Path), m.Path} {
		if f, err = os.Open(name); err == nil {
			break
		}
	}
	return f, err
}

// InRoot returns where a path of a process is found from outside, if the process is in a container.
func InRoot(pid int, path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
