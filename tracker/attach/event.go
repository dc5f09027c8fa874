package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// phase is the kind of an event: a moment of a call, or of the life of a process.
type phase uint32

const (
	atEntry phase = iota
	atReturn
	forked       // args[0] is the new process
	execed       // see comm
	exited       // a thread; args[0] is 1 if it was the last of its process
	codeLoaded   // more code was mapped: program has the mappings
	stackPart    // no event: a part of the stack of the thread's next event
	codeUnloaded // code may be unmapped from now on
	pythonCode   // no event: a copy of a code object of Python, see python.Processes.AddCode
)

// event is what a probe, or the preloaded library, reports.
type event struct {
	time         uint64 // ns of the machine's monotonic clock
	pid, tid     uint32
	function     uint32 // index in the watched functions
	phase        phase
	result       int32
	returned     uint64    // all 64 bits of the result
	out          uint64    // what the call wrote where its first argument points
	pitch        uint64    // the second result of a pitched allocation: its pitch
	args         [6]uint64 // the registers of the arguments
	desc         [5]uint64 // the array descriptor that the second argument points to
	generation   uint32    // of the process, when the stack was unwound: see eventSource.loadUnwindRule
	depth        int       // number of frames found by unwind rules
	total        int       // number of all frames: those beyond depth come from frame pointers and may be wrong
	end          stackEnd  // why depth is not larger
	totalEnd     stackEnd  // why total is not larger
	stack        [maxFrames]uint64
	python       []uint64 // two words for each frame of Python; valid until the next event
	pythonBuffer [2 * maxPython]uint64
	stackCopy    *stackCopy   // from the last certain frame on; valid until the next event
	program      *startRecord // for forked, execed and codeLoaded: what the process itself reported; nil if nothing
}

// comm returns the kernel's name of a program after an exec: the first 15 bytes of the name of its
// file or script; "" if the event has none.
func (e *event) comm() string {
	var name [16]byte
	binary.NativeEndian.PutUint64(name[:], e.args[3])
	binary.NativeEndian.PutUint64(name[8:], e.args[4])
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return strings.ToValidUTF8(string(text), "\uFFFD")
}

// stackEnd is why a stack that a probe unwound ends.
type stackEnd uint8

const (
	notReported     stackEnd = iota // by the preloaded library
	complete                        // at the outermost frame
	noCaller                        // no caller
	unknownFunction                 // no unwind rule is loaded for the last address, so the stack was copied
	copyDropped                     // the same, but the ring buffer was too full for a copy
	truncated                       // there are more than maxFrames
)

// stackCopy is what the reader needs to unwind from where a probe stopped.
type stackCopy struct {
	sp, fp        uint64
	savedReturn   uint64 // the return address that the trampoline of a uretprobe replaces; 0 if none is replaced
	savedReturnSP uint64 // the stack pointer after that return
	stack         []byte // from the stack pointer on
}

// maxFrames is the maximum number of native frames of a stack.
const maxFrames = 128

// maxPython is the maximum number of frames of Python.
const maxPython = 128

// Byte offsets of an event's fields in the ring buffer.
const (
	offTime   = 0
	offThread = 8
	offWhat   = 16 // function, then phase
	offResult = 24
	offOut    = 32
	offPitch  = 40
	offArgs   = 48
	shortSize = 96 // of an event without stack
	// Of an event with a stack:
	offDesc   = shortSize
	offDepth  = 136 // a byte each: depth, end, total, totalEnd; then the generation
	offPython = 144 // number of frames of Python; then two words for each, and a word for each native frame
	offFrames = offPython + 8
	mostSize  = offFrames + 16*maxPython + 8*maxFrames

	// Of a part of the stack: the words of stackCopy, the part's offset, and its bytes.
	offUnknown = offResult
	offPart    = offUnknown + 40
	partSize   = offPart + chunk
)

// Bytes of the word at offDepth.
const (
	inDepth = iota
	inEnd
	inTotal
	inBeyond
)

// Byte offsets in a thread's scratch buffer.
const (
	scratchNext          = 8 * iota               // index of the program to tail call at the end
	scratchPC                                     // innermost address
	scratchSP                                     // of the last certain frame, if its function is unknown
	scratchFP                                     //
	scratchSavedReturn                            // see stackCopy
	scratchSavedReturnSP                          //
	scratchWindowAt                               // the address that the window begins at
	scratchWindow                                 // a cached part of the thread's stack
	scratchEvent         = scratchWindow + window // an event without frames of Python
	scratchFrames        = scratchEvent + offFrames
	scratchDepth         = scratchEvent + offDepth
	scratchNewCode       = scratchFrames + 8*maxFrames // number of unknown code objects of Python, and a byte each for the index of its frame
	scratchNewCodeAt     = scratchNewCode + 8
	scratchSize          = scratchNewCodeAt + 24
)

// Size of a copied stack, and of its parts: the stack may end within a part.
const (
	maxCopy   = 16 << 10
	chunkBits = 10
	chunk     = 1 << chunkBits
)

// window is how many bytes of a stack a probe reads at once: those of several frames.
const window = 1 << 10

// decode parses what the probe wrote.
func (e *event) decode(b []byte) error {
	if len(b) < shortSize {
		return fmt.Errorf("an event of %d bytes: want %d at least", len(b), shortSize)
	}
	u := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	e.time = u(offTime)
	e.pid, e.tid = uint32(u(offThread)>>32), uint32(u(offThread))
	e.function, e.phase = uint32(u(offWhat)), phase(u(offWhat)>>32)
	e.returned, e.out, e.pitch = u(offResult), u(offOut), u(offPitch)
	e.result = int32(e.returned)
	for i := range e.args {
		e.args[i] = u(offArgs + 8*i)
	}
	e.depth, e.total, e.end, e.totalEnd = 0, 0, notReported, notReported
	e.program, e.stackCopy, e.python = nil, nil, nil
	if len(b) < offFrames || e.phase >= stackPart {
		return nil
	}
	for i := range e.desc {
		e.desc[i] = u(offDesc + 8*i)
	}
	python := int(min(u(offPython), maxPython))
	if e.total = int(b[offDepth+inTotal]); e.total > maxFrames || len(b) < offFrames+16*python+8*e.total {
		return fmt.Errorf("an event of %d bytes: want those of %d frames", len(b), python+e.total)
	}
	e.depth, e.end, e.totalEnd, e.generation = min(int(b[offDepth+inDepth]), e.total), stackEnd(b[offDepth+inEnd]), stackEnd(b[offDepth+inBeyond]), uint32(u(offDepth)>>32)
	e.python = e.pythonBuffer[:2*python]
	for i := range e.python {
		e.python[i] = u(offFrames + 8*i)
	}
	for i := range e.stack[:e.total] {
		e.stack[i] = u(offFrames + 16*python + 8*i)
	}
	return nil
}

// frames returns the return addresses, innermost first.
func (e *event) frames() []uint64 { return e.stack[:e.depth] }

// loader stands for the libraries with dlopen and dlclose. They are probed to learn when code is
// mapped and unmapped.
const loader = "libc.so"

// eventSource delivers events: probes in the kernel do, or the preloaded library in the programs.
type eventSource interface {
	// watch begins to report on a process and on all that it starts.
	watch(pid int) error
	// unwatch ends the reports on a process. Processes that it started are still reported on.
	unwatch(pid int)
	// codeGeneration returns a process's current code generation, and the generation since which no
	// code was unmapped. ok is false if the process has ended.
	codeGeneration(pid int) (generation, since uint32, ok bool)
	// probeLibrary probes the functions of a watched library in the file at path.
	probeLibrary(path, library string) error
	// environ returns the environment of a program that is to be watched.
	environ(env []string) []string

	// setPythonLayout sets the layout of a process's Python interpreter. clearPythonLayout removes it
	// when the process has ended or runs another program.
	setPythonLayout(pid int, l python.Layout) error
	clearPythonLayout(pid int)
	// readExecs reads execs ahead of other events, because a short-lived process may be gone when its
	// event is applied. For each program that starts it calls begins with the path of its file, in a
	// new goroutine.
	readExecs(of *python.Processes, begins func(of program, file string))

	// loadUnwindRule loads the unwind rule of a return address: from now on its frame needs no copy of
	// the stack.
	loadUnwindRule(pid int, generation uint32, pc uint64, s unwind.CompactRule)
	// removeUnwindRules removes all rules of a process, whose code has changed.
	removeUnwindRules(pid int)

	// next waits for an event. The error is errFlushed or os.ErrClosed; any other says what was lost,
	// and the next call may succeed.
	next(e *event) error
	// flush makes next return errFlushed after all events of before the call, once begins has returned
	// for their programs.
	flush() error
	// lost returns the number of dropped events, and the time of the first.
	lost() (count, since uint64)

	// detach stops new events. Those that exist can still be read.
	detach()
	// interrupt makes next return os.ErrClosed.
	interrupt()
	close()
}

var errFlushed = errors.New("all events that there were have been read")

// program identifies one exec of a process. Its number is the time of the exec by the clock of the
// events.
type program struct {
	pid    uint32
	number uint64
}

// startRecords holds what was read of programs at their start, until the event of the start is read.
type startRecords struct {
	mu        sync.Mutex
	byProgram map[program]*startRecord
}

// add keeps the record of a program.
func (b *startRecords) add(of program, record *startRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.byProgram) >= maxStartRecords {
		clear(b.byProgram) // their events were lost
	}
	b.byProgram[of] = record
}

// take removes and returns the record of a program; nil if there is none.
func (b *startRecords) take(of program) *startRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := b.byProgram[of]
	delete(b.byProgram, of)
	return record
}

const maxStartRecords = 1 << 14
