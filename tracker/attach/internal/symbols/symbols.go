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

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Symbolizer names the code of one process. One goroutine at a time may use it.
type Symbolizer struct {
	pid        int
	most       int // maximum number of addresses of a stack
	maps       procfs.Maps
	read       func() []procfs.Mapping // returns the current maps; nil if they may not hold for the addresses to name
	stale      bool                    // read returned nil, so code may be missing in maps
	changed    func()                  // called when addresses mean something else
	images     map[fileID]*loaded      // nil of a file that could not be read
	mapped     map[uint64]*loaded      // by the start of a mapping; nil if it is of no file that can be read
	locations  map[uint64]location     // by address, of code in mapped files
	python     perfMap
	codeBuffer []code          // reused for the stack to name
	missing    map[uint64]bool // by page number: pages without code at the last read of the maps
}

// New returns a Symbolizer for a process. It starts with the mappings before: the process may be
// gone by now. most is the maximum number of addresses of a stack. read returns the current maps,
// or nil if they may not hold for the addresses to name. changed is called when addresses mean
// something else.
func New(pid, most int, before procfs.Maps, read func() []procfs.Mapping, changed func()) *Symbolizer {
	return &Symbolizer{
		pid: pid, most: most, maps: before, read: read, changed: changed, python: perfMap{pid: pid},
		images: make(map[fileID]*loaded), mapped: make(map[uint64]*loaded), locations: make(map[uint64]location), missing: make(map[uint64]bool),
	}
}

// Maps returns the mappings that are known.
func (s *Symbolizer) Maps() procfs.Maps { return s.maps }

// Reload reads the maps again. It is false if they may not hold for the addresses to name.
func (s *Symbolizer) Reload() (done bool) {
	now := s.read()
	if s.stale = len(now) == 0 || s.stale; len(now) == 0 {
		return false
	}
	s.Update(now)
	return true
}

// Recover reads the maps again if the last Reload failed.
func (s *Symbolizer) Recover() {
	if s.stale {
		s.Reload()
	}
}

// Update sets the current mappings.
func (s *Symbolizer) Update(now []procfs.Mapping) {
	gone := func(before procfs.Mapping) bool {
		at, ok := procfs.Find(now, before.Start)
		return before.IsFile() && (!ok || at.Inode != before.Inode || before.Device != "" && at.Device != before.Device)
	}
	if s.stale || slices.ContainsFunc(s.maps.All, gone) {
		s.changed()
	}
	s.stale = false
	if !slices.Equal(s.maps.All, now) {
		s.maps.All = now
		s.forget()
		clear(s.missing)
	}
}

// CodeUnloaded records that code may have been unmapped and replaced, even by a changed version of the
// same file.
func (s *Symbolizer) CodeUnloaded() {
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

// KeepLinked drops the mappings that may have been replaced.
func (s *Symbolizer) KeepLinked() {
	s.changed()
	s.forget()
	s.maps.All = s.maps.Linked
}

// forget drops what is known of addresses: they may mean something else.
func (s *Symbolizer) forget() {
	clear(s.mapped)
	clear(s.locations)
}

// at returns the mapping of an address. For an address without one it reads the maps again, once for a
// page: a stack that was unwound wrongly has arbitrary addresses.
func (s *Symbolizer) at(address uint64) (m procfs.Mapping, ok bool) {
	const pageBits, maxMissing = 12, 1 << 12
	page := address >> pageBits
	if m, ok = procfs.Find(s.maps.All, address); ok || s.missing[page] || !s.Reload() {
		return m, ok
	}
	if m, ok = procfs.Find(s.maps.All, address); !ok {
		if len(s.missing) == maxMissing {
			clear(s.missing)
		}
		s.missing[page] = true
	}
	return m, ok
}

// location is what is known of the code at an address.
type location struct {
	frames  []mem.Frame // inlined functions, and then the function; shared
	hasRule bool        // see Symbolizer.hasRule
}

// code is what there is at a return address.
type code struct {
	frames   []mem.Frame // inlined functions, and then the function; for the interpreter of Python, the Python functions
	native   mem.Frame   // the function that is not inlined
	certain  bool        // its caller is known for certain
	ofPython bool        // it belongs to Python's interpreter
	unread   bool        // its mapping was not read before it may have changed
}

// maxLocations is how many locations are cached.
const maxLocations = 1 << 16

// lookUp returns the location of an address. It is cached only for mapped files: what programs write
// about generated code may come later than the code.
func (s *Symbolizer) lookUp(address uint64) location {
	its, ok := s.locations[address]
	if ok {
		return its
	}
	its = location{s.frames(address), s.hasRule(address)}
	if m, ok := procfs.Find(s.maps.All, address); ok && m.IsFile() {
		if len(s.locations) == maxLocations {
			clear(s.locations)
		}
		s.locations[address] = its
	}
	return its
}

// Path returns the file that is mapped at an address; "" if there is none.
func (s *Symbolizer) Path(address uint64) string {
	m, _ := s.at(address)
	return m.Path
}

// frames returns the functions that are inlined at an address, innermost first, and then the function.
func (s *Symbolizer) frames(address uint64) []mem.Frame {
	m, ok := s.at(address)
	if !ok {
		return []mem.Frame{{Function: fmt.Sprintf("%#x", address)}}
	}
	if !m.IsFile() {
		if f, ok := s.python.frame(address); ok {
			return []mem.Frame{f}
		}
		return []mem.Frame{{Function: fmt.Sprintf("%#x", address), File: m.Path}}
	}
	offset := address - m.Start + m.Offset
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

// maxKnown is how many addresses of a file are cached.
const maxKnown = 1 << 16

// loaded is an image with cached answers.
type loaded struct {
	image
	written           time.Time              // modification time of the file when it was read
	checked           bool                   // the file is known to be unchanged since
	known             map[uint64][]mem.Frame // by offset in the file
	table             *unwind.Table          // nil if the file has none
	keepsFramePointer map[uint64]bool        // whether a function sets a frame pointer, by its offset
}

// Table returns the unwind table for the code at an address, and the address within the table's file. It
// is an unwind.Finder.
func (s *Symbolizer) Table(pc uint64) (t *unwind.Table, address uint64, code bool) {
	m, ok := s.at(pc)
	if !ok {
		return nil, 0, false
	}
	its, known := s.mapped[m.Start]
	if !known {
		if m.IsFile() {
			its = s.image(m)
		}
		s.mapped[m.Start] = its
	}
	if its == nil {
		return nil, 0, true
	}
	return its.table, its.address(pc - m.Start + m.Offset), true
}

// hasRule reports whether an unwind table has a rule for an address.
func (s *Symbolizer) hasRule(address uint64) bool {
	t, at, _ := s.Table(address)
	return t != nil && t.Has(at)
}

// fileID identifies a file.
type fileID struct {
	device string
	inode  uint64
}

// keepsFramePointer reports whether the function at an address is known to set a frame pointer.
func (s *Symbolizer) keepsFramePointer(address uint64) bool {
	m, ok := procfs.Find(s.maps.All, address)
	if !ok || !m.IsFile() {
		return false
	}
	img := s.image(m)
	if img == nil {
		return false
	}
	at := img.address(address - m.Start + m.Offset)
	if img.isGo(at) {
		return true
	}
	begin, size, ok := img.function(at)
	if !ok {
		return false
	}
	framed, known := img.keepsFramePointer[begin]
	if !known {
		if f, _, err := s.open(m); err == nil {
			first := make([]byte, min(size, maxPrologue))
			n, _ := f.ReadAt(first, int64(begin))
			framed = setsFramePointer(img.machine(), first[:n])
			f.Close()
		}
		img.keepsFramePointer[begin] = framed
	}
	return framed
}

// Trampoline returns the address of the kernel's trampoline for uretprobes in the process; 0 if there is
// none.
func (s *Symbolizer) Trampoline() uint64 {
	for again := range 2 {
		for _, m := range s.maps.All {
			if m.Path == "[uprobes]" {
				return m.Start
			}
		}
		if again == 0 {
			s.Reload()
		}
	}
	return 0
}

// image returns the opened file of a mapping; nil if it cannot be opened.
func (s *Symbolizer) image(m procfs.Mapping) *loaded {
	key := fileID{m.Device, m.Inode}
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

// open opens the file of a mapping: as the process sees it or, if the process has ended, by its path. It
// compares inodes, because another file may have the path by now. It does not compare devices: that in
// the maps of a container is not always the file's.
func (s *Symbolizer) open(m procfs.Mapping) (f *os.File, written time.Time, err error) {
	for _, name := range []string{fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.Start, m.End), procfs.InRoot(s.pid, m.Path), m.Outside, m.Path} {
		if f, err = os.Open(name); err != nil {
			continue
		}
		info, statErr := f.Stat()
		if statErr == nil && procfs.Inode(info) == m.Inode {
			return f, info.ModTime(), nil
		}
		f.Close()
		err = os.ErrNotExist
	}
	return nil, written, err
}
