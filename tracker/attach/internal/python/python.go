// Package python names the Python functions that a thread of another process runs. What runs is read at the moment of a call,
// by a program in the kernel that follows a Layout; this package finds the interpreter, and names what was read: it reads the
// process's memory, and writes nothing.
package python

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// frame is a frame of the interpreter as it was read.
type frame struct {
	code  uint64 // the address of its code object
	owner uint8  // what is at Layout.Owner
	isNew bool   // nothing was copied of it
	first uint32 // the first line of the function
	at    uint32 // the instruction: bytes from the code object's address, or as old versions count it
}

// decode reads a frame from two words: the address of the code object with the owner and NotCopied in its four lowest bits, which are 0
// in all addresses of objects, and the first line below the instruction.
func decode(code, where uint64) frame {
	const tags, owner = 0x0f, 0x07
	return frame{code &^ tags, uint8(code & owner), code&NotCopied != 0, uint32(where), uint32(where >> 32)}
}

// NotCopied marks a frame of a code object that is new, and could not be copied. Of every other there was a copy before.
const NotCopied = 8

// Names are where a code object has its names, and strings and bytes objects their text. Name is that of the class too, if there is one.
type Names struct{ File, Name, Lines, Length, ASCII, Wide, Size, Bytes uint64 }

// Names returns the places of names.
func (l Layout) Names() Names {
	n := l.names
	return Names{n.file, cmp.Or(n.qualified, n.name), n.lines, n.length, n.ascii, n.compact, n.byteSize, n.bytes}
}

// Names returns the words of _PyRuntime that tell the places of names; 0 for Wide, which lies behind ASCII.
func (t Told) Names() Names {
	word := func(i int) uint64 { return uint64(i) }
	return Names{word(t.file), word(t.qualified), word(t.lines), word(t.length), word(t.ascii), 0, word(t.byteSize), word(t.bytes)}
}

// Layout gives the byte offsets of an interpreter's threads, frames and code within its structures.
type Layout struct {
	Interpreters uint64 // address of the pointer to the first interpreter
	Next         uint64 // interpreter
	Threads      uint64 // interpreter: the first thread
	NextThread   uint64 // thread
	Status       uint64 // thread: see StatusRuns; NoOffset before 3.12
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

// StatusRuns is the bit of a thread's status that says that this interpreter is the one that a thread of the system runs, or ran last:
// such a thread may have one of its own in each interpreter. Before 3.12 nothing says so (bound_gilstate in cpython/pystate.h).
const StatusRuns = 8

// NoOffset marks a field that this version of Python does not have.
const NoOffset = ^uint64(0)

// code is where a code object has its names, and strings their text.
type code struct {
	file, name, qualified uint64 // qualified is 0 before 3.11
	lines                 uint64 // the table of lines
	instructions          uint64
	byteSize, bytes       uint64 // of a bytes object
	length, state         uint64 // of a string
	ascii, compact        uint64 // where a string's text begins
}

// old is code with what was the same until objects without a GIL came.
func (c code) old() code {
	c.byteSize, c.bytes, c.length, c.state = 16, 32, 16, 32
	return c
}

// The layouts of versions without debug offsets, copied from their headers. They are the same in
// all releases of a version, on all 64-bit machines.
var layouts = map[int]Layout{
	0x0309: {
		Interpreters: 32, Threads: 8, NextThread: 8, Status: NoOffset, ThreadID: 176, Frame: 24, Through: NoOffset,
		Previous: 24, Code: 32, Instruction: 104, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: code{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030a: {
		Interpreters: 32, Threads: 8, NextThread: 8, Status: NoOffset, ThreadID: 176, Frame: 24, Through: NoOffset,
		Previous: 24, Code: 32, Instruction: 96, IsIndex: true, Owner: NoOffset, FirstLine: 40,
		names: code{file: 104, name: 112, lines: 120, ascii: 48, compact: 72},
	},
	0x030b: {
		Interpreters: 40, Threads: 16, NextThread: 8, Status: NoOffset, ThreadID: 152, KernelID: 160, Frame: 56, Through: 8,
		Previous: 48, Code: 32, Instruction: 56, Owner: 68, FirstLine: 72, // is_entry
		names: code{file: 112, name: 120, qualified: 128, lines: 136, instructions: 184, ascii: 48, compact: 72},
	},
	0x030c: {
		Interpreters: 40, Threads: 72, NextThread: 8, Status: 24, ThreadID: 136, KernelID: 144, Frame: 56, Through: 0,
		Previous: 8, Code: 0, Instruction: 56, Owner: 70, FirstLine: 68,
		names: code{file: 112, name: 120, qualified: 128, lines: 136, instructions: 192, ascii: 40, compact: 56},
	},
}

// Layouts returns the layouts of the versions that do not tell their own.
func Layouts() (all []Layout) {
	for _, version := range slices.Sorted(maps.Keys(layouts)) {
		l := layouts[version]
		l.Version, l.names = version, l.names.old()
		all = append(all, l)
	}
	return all
}

// view is memory in which there is an interpreter: a process's, or a copy of parts.
type view struct {
	Layout
	from io.ReaderAt
}

// Process is a process that runs Python. Its names are for one goroutine at a time.
type Process struct {
	view
	Image  string // the path of the file that has the interpreter; "" if the process told of that and its maps were not read yet
	Inside uint64 // an address in that file's code, then

	memory *os.File  // nil if it may not be read, or is gone
	found  time.Time // it ran then

	known     map[uint64]uint64    // numbers of functions, by the address of their code objects
	numbers   map[content]uint64   // and by what they are
	functions map[uint64]*function // by their numbers
	last      uint64               // the latest number
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
	p := &Process{view: view{from: memory}, Image: m.Path, memory: memory, known: make(map[uint64]uint64)}
	if p.Layout, err = p.layout(at, version); err != nil {
		memory.Close()
		return nil, err
	}
	return p, nil
}

func (p *Process) close() { p.memory.Close() } // nothing, if there is none

// layout returns the layout of a version whose _PyRuntime is at an address.
func (v view) layout(runtime uint64, version int) (Layout, error) {
	l, ok := layouts[version]
	l.names = l.names.old()
	if !ok {
		var err error
		if l, err = v.debugOffsets(runtime, version); err != nil {
			return l, err
		}
	}
	l.Version = version
	l.Interpreters += runtime
	return l, nil
}

// Told says at which words of _PyRuntime an interpreter of a version tells its own offsets, as interpreters do since 3.13
// (struct _Py_DebugOffsets in their headers).
type Told struct {
	Version                                                 int
	next, threads, nextThread, kernelID, threadID, status   int
	Frame, Previous, Code, Instruction, Owner, FirstLine    int
	file, name, qualified, lines, instructions              int
	byteSize, bytes, stringSize, stringState, length, ascii int
}

var told = []Told{
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

// Tell returns the versions that tell their offsets.
func Tell() []Told { return told }

// debugOffsets reads the layout that an interpreter tells.
func (v view) debugOffsets(runtime uint64, version int) (l Layout, err error) {
	at := slices.IndexFunc(told, func(t Told) bool { return t.Version == version })
	if at < 0 {
		return l, fmt.Errorf("the layout of Python %d.%d is not known", version>>8, version&0xff)
	}
	t := told[at]
	text, err := v.read(runtime, 8*(t.ascii+1))
	if err != nil {
		return l, err
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	const pointers = 8 * 3 // that a string with text of its own has more than one of ASCII
	if string(text[:8]) != "xdebugpy" || int(word(1)>>16) != version || word(t.stringSize) != word(t.ascii)+pointers || word(t.bytes) != word(t.byteSize)+16 {
		return l, fmt.Errorf("the offsets that Python %d.%d tells are in another order", version>>8, version&0xff)
	}
	return Layout{
		freeThreaded: word(2) != 0,
		Interpreters: word(5), Next: word(t.next),
		Threads: word(t.threads), NextThread: word(t.nextThread), Status: word(t.status), Frame: word(t.Frame), Through: NoOffset,
		ThreadID: word(t.threadID), KernelID: word(t.kernelID),
		Previous: word(t.Previous), Code: word(t.Code), Instruction: word(t.Instruction), Owner: word(t.Owner),
		FirstLine: word(t.FirstLine),
		names: code{
			file: word(t.file), name: word(t.name), qualified: word(t.qualified), lines: word(t.lines), instructions: word(t.instructions),
			byteSize: word(t.byteSize), bytes: word(t.bytes), length: word(t.length), state: word(t.stringState),
			ascii: word(t.ascii), compact: word(t.ascii) + 16,
		},
	}, nil
}

// read copies bytes of the memory.
func (v view) read(address uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := v.from.ReadAt(b, int64(address)); err != nil {
		return nil, err
	}
	return b, nil
}

func (v view) word(address uint64) uint64 {
	b, err := v.read(address, 8)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}
