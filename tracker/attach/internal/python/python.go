// Package python names the Python functions that a thread of another process runs. What runs is read at the moment of a call,
// by a program in the kernel that follows a Layout; this package finds the interpreter, and names what was read: it reads the
// process's memory, and writes nothing.
package python

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// frame is a frame of the interpreter as it was read.
type frame struct {
	code  uint64 // the address of its code object
	owner uint8  // what is at Layout.Owner
	first uint32 // the first line of the function
	at    uint32 // the instruction: bytes from the code object's address, or as old versions count it
}

// decode reads a frame from two words: the address of the code object with the owner in its four lowest bits, which are 0 in all
// addresses of objects, and the first line below the instruction.
func decode(code, where uint64) frame {
	const owner = 0x0f
	return frame{code &^ owner, uint8(code & owner), uint32(where), uint32(where >> 32)}
}

// Layout gives the byte offsets of an interpreter's threads, frames and code within its structures.
type Layout struct {
	Main         uint64 // address of the pointer to the main interpreter
	Threads      uint64 // interpreter: the first thread
	NextThread   uint64 // thread
	ThreadID     uint64 // as pthread_self has it
	KernelID     uint64 // as gettid has it; 0 before 3.11
	Frame        uint64 // thread: the innermost frame
	Through      uint64 // if it is not NoOffset, what Frame leads to has the innermost frame there
	Previous     uint64 // frame: the caller
	Code         uint64
	Instruction  uint64
	IsIndex      bool // Instruction is a number of 32 bits, and not a pointer
	Owner        uint64
	FirstLine    uint64 // code
	Version      int    // 0x030c
	names        code
	freeThreaded bool
}

// NoOffset marks a field that this version of Python does not have.
const NoOffset = ^uint64(0)

// code is where a code object has its names, and strings their text.
type code struct {
	file, name, qualified uint64 // qualified is 0 before 3.11
	lines                 uint64 // the table of lines
	instructions          uint64
	ascii, compact        uint64 // where a string's text begins
}

// The layouts of versions without debug offsets, copied from their headers. They are the same in
// all releases of a version, on all 64-bit machines.
var layouts = map[int]Layout{
	0x0309: {
		Main: 40, Threads: 8, NextThread: 8, ThreadID: 176, Frame: 24, Through: NoOffset,
		Previous: 24, Code: 32, Instruction: 104, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: code{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030a: {
		Main: 40, Threads: 8, NextThread: 8, ThreadID: 176, Frame: 24, Through: NoOffset,
		Previous: 24, Code: 32, Instruction: 96, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: code{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030b: {
		Main: 48, Threads: 16, NextThread: 8, ThreadID: 152, KernelID: 160, Frame: 56, Through: 8,
		Previous: 48, Code: 32, Instruction: 56, Owner: 68, FirstLine: 72, // is_entry
		names: code{file: 112, name: 120, qualified: 128, lines: 136, instructions: 184, ascii: 48, compact: 72},
	},
	0x030c: {
		Main: 48, Threads: 72, NextThread: 8, ThreadID: 136, KernelID: 144, Frame: 56, Through: 0,
		Previous: 8, Code: 0, Instruction: 56, Owner: 70, FirstLine: 68,
		names: code{file: 112, name: 120, qualified: 128, lines: 136, instructions: 192, ascii: 40, compact: 56},
	},
}

// Layouts returns the layouts of the versions that do not tell their own.
func Layouts() (all []Layout) {
	for _, version := range slices.Sorted(maps.Keys(layouts)) {
		l := layouts[version]
		l.Version = version
		all = append(all, l)
	}
	return all
}

// Process is a process that runs Python.
type Process struct {
	Layout
	Image string // the path of the file that has the interpreter

	memory *os.File

	mu    sync.Mutex
	known map[uint64]*function // by the address of their code objects
}

// open finds the interpreter of a process in a file that it has loaded. The error says that there is none, or one that is not
// known here.
func open(pid int, m symbols.Mapping) (*Process, error) {
	start, offset := m.Place()
	at, version, err := runtimeOf(symbols.InRoot(pid, m.Path), start, offset)
	if err != nil {
		return nil, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	p := &Process{Image: m.Path, memory: memory, known: make(map[uint64]*function)}
	if p.Layout, err = p.layout(at, version); err != nil {
		memory.Close()
		return nil, err
	}
	return p, nil
}

func (p *Process) close() { p.memory.Close() }

// layout returns the layout of a version whose _PyRuntime is at an address.
func (p *Process) layout(runtime uint64, version int) (Layout, error) {
	l, ok := layouts[version]
	if !ok {
		var err error
		if l, err = p.debugOffsets(runtime, version); err != nil {
			return l, err
		}
	}
	l.Version = version
	l.Main += runtime
	return l, nil
}

// debugOffsets reads the layout that interpreters have told since 3.13 (Include/internal/pycore_runtime.h, _Py_DebugOffsets).
func (p *Process) debugOffsets(runtime uint64, version int) (l Layout, err error) {
	const words = 73
	text, err := p.read(runtime, 8*words)
	if err != nil {
		return l, err
	}
	if string(text[:8]) != "xdebugpy" || version != 0x030d {
		return l, fmt.Errorf("the layout of Python %d.%d is not known", version>>8, version&0xff)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	return Layout{
		freeThreaded: word(2) != 0,
		Main:         word(5) + 8, // the first interpreter of the list, and then the main one
		Threads:      word(9), NextThread: word(21), Frame: word(23), Through: NoOffset, ThreadID: word(24), KernelID: word(25),
		Previous: word(29), Code: word(30), Instruction: word(31), Owner: word(33),
		FirstLine: word(39),
		names: code{
			file: word(35), name: word(36), qualified: word(37), lines: word(38), instructions: word(43), ascii: word(70), compact: word(70) + 16,
		},
	}, nil
}

// read copies bytes of the process.
func (p *Process) read(address uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := p.memory.ReadAt(b, int64(address)); err != nil {
		return nil, err
	}
	return b, nil
}

func (p *Process) word(address uint64) uint64 {
	b, err := p.read(address, 8)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}
