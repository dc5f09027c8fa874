// Package python names the Python functions that a thread of another process runs. Its frames are read
// during a call, by a program in the kernel that gets a Layout. This package finds the interpreter, and
// names what was read. It reads the process's memory, and writes nothing.
package python

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// frame is a frame of the interpreter.
type frame struct {
	code      uint64 // the address of its code object
	owner     uint8  // what is at Layout.Owner
	notCopied bool   // its code object is unknown, and was not copied
	digest    uint32 // identifies the code object if that was not copied, see memoryView.digest
	at        uint32 // the instruction: bytes from the code object's address, or an index in old versions
}

// decode decodes a frame from two words: the address of the code object with the owner and NotCopied in
// its four lowest bits, which are 0 in addresses of objects; and below the instruction the digest, or the first line.
func decode(code, where uint64) frame {
	const tags, owner = 0x0f, 0x07
	return frame{code &^ tags, uint8(code & owner), code&NotCopied != 0, uint32(where), uint32(where >> 32)}
}

// NotCopied marks a frame whose code object is unknown, and could not be copied. All others were copied.
const NotCopied = 8

// Names are the offsets of the names in a code object, and of the contents in strings and bytes objects.
// Name is the qualified name, if the version has one.
type Names struct{ File, Name, Lines, Length, ASCII, Wide, Size, Bytes uint64 }

// Names returns the offsets of names.
func (l Layout) Names() Names {
	n := l.names
	return Names{n.file, cmp.Or(n.qualified, n.name), n.lines, n.length, n.ascii, n.compact, n.byteSize, n.bytes}
}

// Names returns the indexes of the words of _PyRuntime with the offsets of names. Wide is 0: it follows
// from ASCII.
func (t DebugOffsets) Names() Names {
	word := func(i int) uint64 { return uint64(i) }
	return Names{word(t.file), word(t.qualified), word(t.lines), word(t.length), word(t.ascii), 0, word(t.byteSize), word(t.bytes)}
}

// Layout gives the byte offsets of an interpreter's threads, frames and code within its structures.
type Layout struct {
	Interpreters uint64 // address of the pointer to the first interpreter
	Next         uint64 // interpreter
	Threads      uint64 // interpreter: the first thread
	NextThread   uint64 // thread
	Status       uint64 // thread: see StatusBound; NoOffset before 3.12
	ThreadID     uint64 // as pthread_self has it
	KernelID     uint64 // as gettid has it; 0 before 3.11
	Frame        uint64 // thread: the innermost frame
	Indirect     uint64 // unless NoOffset, the pointer at Frame leads to a structure with the innermost frame at this offset
	Previous     uint64 // frame: the caller
	Code         uint64
	Instruction  uint64
	IsIndex      bool // Instruction is an index of 32 bits, not a pointer
	Owner        uint64
	FirstLine    uint64 // code
	Version      int    // 0x030c
	names        codeLayout
	freeThreaded bool
}

// StatusBound is the bit of a Python thread's status that is set if the system's thread runs this
// interpreter, or ran it last: it may have a Python thread in each interpreter. It exists since 3.12
// (bound_gilstate in cpython/pystate.h).
const StatusBound = 8

// NoOffset marks a field that this version of Python does not have.
const NoOffset = ^uint64(0)

// codeLayout has the offsets in code objects, and in strings and bytes objects.
type codeLayout struct {
	file, name, qualified uint64 // qualified is 0 before 3.11
	lines                 uint64 // the line table
	instructions          uint64
	byteSize, bytes       uint64 // of a bytes object
	length, state         uint64 // of a string
	ascii, compact        uint64 // of a string: the text
}

// beforeFreeThreading sets the offsets that all versions had before free threading.
func (c codeLayout) beforeFreeThreading() codeLayout {
	c.byteSize, c.bytes, c.length, c.state = 16, 32, 16, 32
	return c
}

// layouts are the layouts of versions without debug offsets, from their headers. They are the same in all
// releases of a version, on all 64-bit machines.
var layouts = map[int]Layout{
	0x0309: {
		Interpreters: 32, Threads: 8, NextThread: 8, Status: NoOffset, ThreadID: 176, Frame: 24, Indirect: NoOffset,
		Previous: 24, Code: 32, Instruction: 104, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: codeLayout{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030a: {
		Interpreters: 32, Threads: 8, NextThread: 8, Status: NoOffset, ThreadID: 176, Frame: 24, Indirect: NoOffset,
		Previous: 24, Code: 32, Instruction: 96, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: codeLayout{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030b: {
		Interpreters: 40, Threads: 16, NextThread: 8, Status: NoOffset, ThreadID: 152, KernelID: 160, Frame: 56, Indirect: 8,
		Previous: 48, Code: 32, Instruction: 56, Owner: 68, FirstLine: 72, // is_entry
		names: codeLayout{file: 112, name: 120, qualified: 128, lines: 136, instructions: 184, ascii: 48, compact: 72},
	},
	0x030c: {
		Interpreters: 40, Threads: 72, NextThread: 8, Status: 24, ThreadID: 136, KernelID: 144, Frame: 56, Indirect: 0,
		Previous: 8, Code: 0, Instruction: 56, Owner: 70, FirstLine: 68,
		names: codeLayout{file: 112, name: 120, qualified: 128, lines: 136, instructions: 192, ascii: 40, compact: 56},
	},
}

// Layouts returns the layouts of the versions without debug offsets.
func Layouts() (all []Layout) {
	for _, version := range slices.Sorted(maps.Keys(layouts)) {
		l := layouts[version]
		l.Version, l.names = version, l.names.beforeFreeThreading()
		all = append(all, l)
	}
	return all
}

// memoryView is the memory of an interpreter: a process's, or copied parts.
type memoryView struct {
	Layout
	from io.ReaderAt
}

// Process is a process that runs Python. One goroutine at a time may use its names.
type Process struct {
	memoryView
	Image       string // the path of the interpreter's file; "" if the process reported it, and its maps were not read yet
	CodeAddress uint64 // if Image is "": an address in the interpreter's code

	memory *os.File  // nil if it cannot be read
	found  time.Time // a time when it ran

	functions functions
	last      uint64 // the latest ID of one
}

// open finds the interpreter of a process in a file that it has loaded. The error says that there is
// none, or that its version is unknown.
func open(pid int, m procfs.Mapping) (*Process, error) {
	at, version, err := runtimeOf(procfs.InRoot(pid, m.Path), m.Start, m.Offset)
	if err != nil {
		return nil, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	p := &Process{memoryView: memoryView{from: memory}, Image: m.Path, memory: memory}
	if p.Layout, err = p.layout(at, version); err != nil {
		memory.Close()
		return nil, err
	}
	return p, nil
}

func (p *Process) close() { p.memory.Close() } // nil is fine

// layout returns the layout of a version with its _PyRuntime at an address.
func (v memoryView) layout(runtime uint64, version int) (Layout, error) {
	l, ok := layouts[version]
	l.names = l.names.beforeFreeThreading()
	if !ok {
		var err error
		if l, err = v.readDebugOffsets(runtime, version); err != nil {
			return l, err
		}
	}
	l.Version = version
	l.Interpreters += runtime
	return l, nil
}

// DebugOffsets has, for a version, the indexes of the words of _PyRuntime with the interpreter's debug
// offsets, which exist since 3.13 (struct _Py_DebugOffsets in its headers).
type DebugOffsets struct {
	Version                                                 int
	next, threads, nextThread, kernelID, threadID, status   int
	Frame, Previous, Code, Instruction, Owner, FirstLine    int
	file, name, qualified, lines, instructions              int
	byteSize, bytes, stringSize, stringState, length, ascii int
}

var debugOffsets = []DebugOffsets{
	{
		Version: 0x030d, next: 8, threads: 9, nextThread: 21, Frame: 23, threadID: 24, kernelID: 25, status: 27, Previous: 29, Code: 30, Instruction: 31, Owner: 33,
		file: 35, name: 36, qualified: 37, lines: 38, FirstLine: 39, instructions: 43,
		byteSize: 65, bytes: 66, stringSize: 67, stringState: 68, length: 69, ascii: 70,
	},
	{
		Version: 0x030e, next: 8, threads: 9, nextThread: 24, Frame: 26, threadID: 27, kernelID: 28, status: 30, Previous: 32, Code: 33, Instruction: 34, Owner: 36,
		file: 40, name: 41, qualified: 42, lines: 43, FirstLine: 44, instructions: 48,
		byteSize: 75, bytes: 76, stringSize: 77, stringState: 78, length: 79, ascii: 80,
	},
	{
		Version: 0x030f, next: 8, threads: 9, nextThread: 24, Frame: 26, threadID: 30, kernelID: 31, status: 33, Previous: 40, Code: 41, Instruction: 42, Owner: 44,
		file: 48, name: 49, qualified: 50, lines: 51, FirstLine: 52, instructions: 56,
		byteSize: 87, bytes: 88, stringSize: 89, stringState: 90, length: 91, ascii: 92,
	},
}

// DebugOffsetVersions returns the DebugOffsets of all known versions.
func DebugOffsetVersions() []DebugOffsets { return debugOffsets }

// readDebugOffsets reads the layout from an interpreter's debug offsets.
func (v memoryView) readDebugOffsets(runtime uint64, version int) (l Layout, err error) {
	at := slices.IndexFunc(debugOffsets, func(t DebugOffsets) bool { return t.Version == version })
	if at < 0 {
		return l, fmt.Errorf("the layout of Python %d.%d is not known", version>>8, version&0xff)
	}
	t := debugOffsets[at]
	text, err := v.read(runtime, 8*(t.ascii+1))
	if err != nil {
		return l, err
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	const pointers = 8 * 3 // a string with separate text has three pointers more than one of ASCII
	if string(text[:8]) != "xdebugpy" || int(word(1)>>16) != version || word(t.stringSize) != word(t.ascii)+pointers || word(t.bytes) != word(t.byteSize)+16 {
		return l, fmt.Errorf("the offsets that Python %d.%d tells are in another order", version>>8, version&0xff)
	}
	return Layout{
		freeThreaded: word(2) != 0,
		Interpreters: word(5), Next: word(t.next),
		Threads: word(t.threads), NextThread: word(t.nextThread), Status: word(t.status), Frame: word(t.Frame), Indirect: NoOffset,
		ThreadID: word(t.threadID), KernelID: word(t.kernelID),
		Previous: word(t.Previous), Code: word(t.Code), Instruction: word(t.Instruction), Owner: word(t.Owner),
		FirstLine: word(t.FirstLine),
		names: codeLayout{
			file: word(t.file), name: word(t.name), qualified: word(t.qualified), lines: word(t.lines), instructions: word(t.instructions),
			byteSize: word(t.byteSize), bytes: word(t.bytes), length: word(t.length), state: word(t.stringState),
			ascii: word(t.ascii), compact: word(t.ascii) + 16,
		},
	}, nil
}

// read returns a copy of n bytes.
func (v memoryView) read(address uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := v.from.ReadAt(b, int64(address)); err != nil {
		return nil, err
	}
	return b, nil
}

func (v memoryView) word(address uint64) uint64 {
	b, err := v.read(address, 8)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

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
