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
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Symbolizer names the code of one process. It is for one goroutine at a time.
type Symbolizer struct {
	pid     int
	most    int // how many addresses a stack can have
	maps    Maps
	read    func() []Mapping   // reads the maps as they are; nil if addresses may mean something else by now than those that are to be named
	unsure  bool               // read gave nil, so code may have no name that has one
	changed func()             // called when addresses have come to mean something else
	images  map[fileID]*loaded // nil of a file that could not be read
	tables  map[uint64]*table  // by the start of a mapping
	places  map[uint64]place   // by address, of mappings of files: it depends on the mappings and their files alone
	python  perfMap
	room    []code          // of the stack that is named
	missing map[uint64]bool // by number of the page: no code was there when the maps were read for it
}

// Maps is the code of a process.
type Maps struct {
	All    []Mapping
	Linked []Mapping // those that stay as long as the program runs, as far as that is known
}

// New returns a Symbolizer for a process. It begins with the mappings that the process had
// before: the process may be gone by now. most is how many addresses a stack can have. read returns the maps as they are, or nil if
// addresses may mean something else by now than those that are to be named. changed is called when addresses have come to mean
// something else.
func New(pid, most int, before Maps, read func() []Mapping, changed func()) *Symbolizer {
	return &Symbolizer{
		pid: pid, most: most, maps: before, read: read, changed: changed, python: perfMap{pid: pid},
		images: make(map[fileID]*loaded), tables: make(map[uint64]*table), places: make(map[uint64]place), missing: make(map[uint64]bool),
	}
}

// Maps returns what is known of the code.
func (s *Symbolizer) Maps() Maps { return s.maps }

// Reload reads the maps again, if that tells what addresses mean.
func (s *Symbolizer) Reload() (done bool) {
	now := s.read()
	if s.unsure = len(now) == 0 || s.unsure; len(now) == 0 {
		return false
	}
	s.Update(now)
	return true
}

// Recover reads the maps again if that told nothing the last time.
func (s *Symbolizer) Recover() {
	if s.unsure {
		s.Reload()
	}
}

// Update says which mappings the process has by now.
func (s *Symbolizer) Update(now []Mapping) {
	gone := func(before Mapping) bool {
		at, ok := find(now, before.start)
		return before.file() && (!ok || at.inode != before.inode || at.device != before.device)
	}
	if s.unsure || slices.ContainsFunc(s.maps.All, gone) {
		s.changed()
	}
	s.unsure = false
	if !slices.Equal(s.maps.All, now) {
		s.maps.All = now
		s.forget()
		clear(s.missing)
	}
}

// Unlinked says that code may have gone, and other come in its place, even from a file that was written again.
func (s *Symbolizer) Unlinked() {
	s.changed()
	s.forget()
	for _, img := range s.images {
		if img != nil {
			img.checked = false
		}
	}
	if !s.Reload() {
		s.maps.All = s.maps.Linked
	}
}

// forget drops what is known of addresses: they may mean something else.
func (s *Symbolizer) forget() {
	clear(s.tables)
	clear(s.places)
}

// at returns the mapping that an address lies in. The maps are read again for one that is in none, once for a page: a stack that was followed
// wrongly has addresses of anything.
func (s *Symbolizer) at(address uint64) (m Mapping, ok bool) {
	const pageBits, maxMissing = 12, 1 << 12
	page := address >> pageBits
	if m, ok = find(s.maps.All, address); ok || s.missing[page] || !s.Reload() {
		return m, ok
	}
	if m, ok = find(s.maps.All, address); !ok {
		if len(s.missing) == maxMissing {
			clear(s.missing)
		}
		s.missing[page] = true
	}
	return m, ok
}

// place is what is known of the code at an address.
type place struct {
	frames []mem.Frame // the function, after those that were inlined; shared
	tabled bool        // see tabled
}

// code is what there is at a return address.
type code struct {
	frames  []mem.Frame // the function, after those that were inlined; of Python those that it runs
	native  mem.Frame   // the function itself
	certain bool        // there is no doubt which function called it
	its     bool        // it is of Python's interpreter
}

// maxPlaces is how many places are remembered.
const maxPlaces = 1 << 16

// place looks at an address once, as long as the mappings stay. What programs write of code that they make may come later than the code.
func (s *Symbolizer) place(address uint64) place {
	its, ok := s.places[address]
	if ok {
		return its
	}
	its = place{s.frames(address), s.tabled(address)}
	if m, ok := find(s.maps.All, address); ok && m.file() {
		if len(s.places) == maxPlaces {
			clear(s.places)
		}
		s.places[address] = its
	}
	return its
}

// Path returns the file of an address of the process; "" if there is none.
func (s *Symbolizer) Path(address uint64) string {
	m, _ := s.at(address)
	return m.Path
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
	written time.Time              // the file, when it was read
	checked bool                   // it has not been written since
	known   map[uint64][]mem.Frame // by offset in the file
	table   *unwind.Table          // nil if the file has none
	framed  map[uint64]bool        // whether a function keeps a frame pointer, by where it begins
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

// framed reports whether the function at an address is known to keep a frame pointer.
func (s *Symbolizer) framed(address uint64) bool {
	m, ok := find(s.maps.All, address)
	if !ok || !m.file() {
		return false
	}
	img := s.image(m)
	if img == nil {
		return false
	}
	at := img.address(address - m.start + m.offset)
	if img.isGo(at) {
		return true
	}
	begin, size, ok := img.function(at)
	if !ok {
		return false
	}
	framed, known := img.framed[begin]
	if !known {
		if f, _, err := s.open(m); err == nil {
			first := make([]byte, min(size, maxPrologue))
			n, _ := f.ReadAt(first, int64(begin))
			framed = keepsPointer(img.machine(), first[:n])
			f.Close()
		}
		img.framed[begin] = framed
	}
	return framed
}

// Trampoline is the address that the kernel has functions with a probe at their return go back to; 0 if there is none.
func (s *Symbolizer) Trampoline() uint64 {
	for again := range 2 {
		for _, m := range s.maps.All {
			if m.Path == "[uprobes]" {
				return m.start
			}
		}
		if again == 0 {
			s.Reload()
		}
	}
	return 0
}

// image opens the file of a mapping, once; nil if that is not possible.
func (s *Symbolizer) image(m Mapping) *loaded {
	key := fileID{m.device, m.inode}
	img, ok := s.images[key]
	if ok && (img == nil || img.checked) {
		return img
	}
	if f, written, err := s.open(m); err == nil {
		if img != nil && img.written.Equal(written) {
			f.Close()
		} else if opened, table, err := openImage(f, m.Path); err == nil {
			img = &loaded{opened, written, true, make(map[uint64][]mem.Frame), table, make(map[uint64]bool)}
		}
	}
	if img != nil {
		img.checked = true
	}
	s.images[key] = img
	return img
}

// open opens the file of a mapping: as the process sees it or, if the process has ended, by its
// path. Another file may be there by now: it has another inode. (The device that the maps of a container have is not always the file's.)
func (s *Symbolizer) open(m Mapping) (f *os.File, written time.Time, err error) {
	for _, name := range []string{fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.start, m.end), InRoot(s.pid, m.Path), m.Path} {
		if f, err = os.Open(name); err != nil {
			continue
		}
		info, statErr := f.Stat()
		if statErr == nil && inode(info) == m.inode {
			return f, info.ModTime(), nil
		}
		f.Close()
		err = os.ErrNotExist
	}
	return nil, written, err
}

// InRoot returns where a path of a process is found from outside, if the process is in a container.
func InRoot(pid int, path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
