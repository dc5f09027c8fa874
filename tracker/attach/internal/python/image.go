package python

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
)

// runtimeOf returns the address of _PyRuntime, if the code of its file is mapped from offset on at start,
// and the version of Python.
func runtimeOf(file string, start, offset uint64) (at uint64, version int, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, err
	}
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_UNDEF:
		case s.Name == "_PyRuntime":
			at = s.Value
		case s.Name == "Py_Version": // since 3.11
			version = versionAt(f, s.Value)
		}
	}
	if at == 0 {
		return 0, 0, errors.New("it has no _PyRuntime")
	}
	if version == 0 {
		version = versionIn(filepath.Base(file))
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Off <= offset+pageSize-1 && offset < p.Off+p.Filesz && p.Flags&elf.PF_X != 0 {
			return at + start - offset + p.Off - p.Vaddr, version, nil
		}
	}
	return 0, 0, errors.New("it has no such code")
}

const pageSize = 64 << 10 // maximum: a mapping starts at the page of its segment

// versionAt reads Py_Version, such as 0x030c01f0.
func versionAt(f *elf.File, address uint64) int {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address+8 <= p.Vaddr+p.Filesz {
			var text [8]byte
			if _, err := p.ReadAt(text[:], int64(address-p.Vaddr)); err == nil {
				return int(f.ByteOrder.Uint64(text[:]) >> 16)
			}
		}
	}
	return 0
}

var inName = regexp.MustCompile(`python(\d)\.(\d+)`)

// versionIn returns the version in the name of an interpreter or its library: python3.9, libpython3.10.so.1.0.
func versionIn(name string) int {
	m := inName.FindStringSubmatch(name)
	if m == nil {
		return 0
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major<<8 | minor
}

// String names the version.
func (l Layout) String() string { return fmt.Sprintf("Python %d.%d", l.Version>>8, l.Version&0xff) }
