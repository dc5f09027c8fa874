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

// phase is the moment that an event tells of: in a call, or in the life of a process.
type phase uint32

const (
	atEntry phase = iota
	atReturn
	forked   // args[0] is the new process
	execed   // see comm
	exited   // a thread; args[0] is 1 if the whole process did
	loaded   // more code: program has the mappings
	copies   // no event: a part of the thread's stack, which belongs to the thread's next event
	unlinked // code may go from now on
	said     // no event: what a code object of Python says of itself, see python.Processes.Learn
)

// event is what a probe, or the library in front of libcuda, saw.
type event struct {
	time       uint64 // ns of the machine's monotonic clock
	pid, tid   uint32
	function   uint32 // index in what is watched
	phase      phase
	result     int32
	returned   uint64    // the whole of the result
	out        uint64    // what the call wrote where its first argument points
	pitch      uint64    // the second result of a pitched allocation: its pitch
	args       [6]uint64 // the registers of the arguments
	desc       [5]uint64 // the array descriptor that the second argument points to
	generation uint32    // of the process, when the stack was followed: see probes.teach
	depth      int       // how many frames of the stack are certain
	total      int       // and how many there are, with those that frame pointers gave: they may be wrong
	end        ending    // what follows the certain frames
	beyond     ending    // and what follows all
	stack      [maxFrames]uint64
	python     []uint64 // two words for each frame of Python; valid until the next event
	pythonRoom [2 * maxPython]uint64
	copied     *copied // of the stack, from the last certain frame on; valid until the next event
	program    *birth  // for forked, execed and loaded: what the process itself reported; nil if it did not
}

// comm returns the name that the kernel gives a program at its exec: that of its file, or of its script, of which it keeps 15 letters; "" if
// the event does not say.
func (e *event) comm() string {
	var name [16]byte
	binary.NativeEndian.PutUint64(name[:], e.args[3])
	binary.NativeEndian.PutUint64(name[8:], e.args[4])
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return strings.ToValidUTF8(string(text), "\uFFFD")
}

// ending says how the stack ends that a probe found.
type ending uint8

const (
	notSaid   ending = iota // by the library in front of libcuda
	whole                   // the outermost frame
	lost                    // no caller
	isUnknown               // the probe does not know how to find this function's caller, so the stack was copied
	isLeftOut               // nor this one's, and the ring had no room for a copy of the stack
	isMore                  // there are more frames than there is room for
)

// copied is what the reader needs to find the callers that a probe could not.
type copied struct {
	sp, fp uint64
	kept   uint64 // the return address of a function that has a probe at its return, 0 if the thread is in none
	keptAt uint64 // the stack pointer after it
	stack  []byte // from the stack pointer on
}

// maxFrames is the most frames that a stack has.
const maxFrames = 128

// maxPython is the most frames of Python.
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
	offDepth  = 136 // a byte each: depth, end, total, beyond; then the generation
	offPython = 144 // how many frames of Python there are; then two words for each, and a word for each address of the stack
	offFrames = offPython + 8
	mostSize  = offFrames + 16*maxPython + 8*maxFrames

	// Of a part of the stack: the words of copied, where the part begins, and its bytes.
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

// A thread's room, in bytes.
const (
	roomNext     = 8 * iota            // number of the program that runs last
	roomPC                             // where the stack begins
	roomSP                             // of the last certain frame, if it is of an unknown function
	roomFP                             //
	roomKept                           // see copied
	roomKeptAt                         //
	roomWindowAt                       // the address of what is in the window
	roomWindow                         // a part of the thread's stack
	roomEvent    = roomWindow + window // an event without frames of Python
	roomFrames   = roomEvent + offFrames
	roomDepth    = roomEvent + offDepth
	roomNew      = roomFrames + 8*maxFrames // how many code objects of Python are new, and a byte for the frame of each
	roomNewAt    = roomNew + 8
	roomSize     = roomNewAt + 24
)

// How many bytes of a stack are copied, and in parts of which size: the stack may end within one.
const (
	maxCopy   = 16 << 10
	chunkBits = 10
	chunk     = 1 << chunkBits
)

// window is how many bytes of a stack a probe reads at a time: several frames.
const window = 1 << 10

// read decodes what the probe wrote.
func (e *event) read(b []byte) error {
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
	e.depth, e.total, e.end, e.beyond = 0, 0, notSaid, notSaid
	e.program, e.copied, e.python = nil, nil, nil
	if len(b) < offFrames || e.phase >= copies {
		return nil
	}
	for i := range e.desc {
		e.desc[i] = u(offDesc + 8*i)
	}
	python := int(min(u(offPython), maxPython))
	if e.total = int(b[offDepth+inTotal]); e.total > maxFrames || len(b) < offFrames+16*python+8*e.total {
		return fmt.Errorf("an event of %d bytes: want those of %d frames", len(b), python+e.total)
	}
	e.depth, e.end, e.beyond, e.generation = min(int(b[offDepth+inDepth]), e.total), ending(b[offDepth+inEnd]), ending(b[offDepth+inBeyond]), uint32(u(offDepth)>>32)
	e.python = e.pythonRoom[:2*python]
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

// loader stands for the libraries that have dlopen and dlclose, which are probed to know when code comes and goes.
const loader = "libc.so"

// feed is where events come from: probes in the kernel, or a library in the programs.
type feed interface {
	// watch begins to report on a process and on all that it starts.
	watch(pid int) error
	// forget ends the reports on a process. Processes that it started are still reported on.
	forget(pid int)
	// code returns the generation that a process has now, and since which of them no code of the process has gone. ok is false of a process
	// that has ended.
	code(pid int) (generation, since uint32, ok bool)
	// library probes the file at path, which holds the functions of a library that is watched.
	library(path, library string) error
	// environ returns the environment of a program that is to be watched.
	environ(env []string) []string

	// runs tells how a process's interpreter of Python is laid out; runsOther, that the process has ended or runs another program.
	runs(pid int, l python.Layout) error
	runsOther(pid int)
	// readSoonGone has what may be gone before its event is applied read as soon as it is seen, and calls begins, in a goroutine of
	// its own, for each program that begins, with the path of its file.
	readSoonGone(of *python.Processes, begins func(of program, file string))

	// teach says how to get from the frame with a return address to its caller: from now on the stack needs no copy for it.
	teach(pid int, generation uint32, pc uint64, s unwind.Step)
	// unteach forgets everything that was taught of a process, which has other code there now.
	unteach(pid int)

	// next waits for an event. The error is errFlushed or os.ErrClosed, or says what was
	// lost: the next call may succeed.
	next(e *event) error
	// flush has next return errFlushed once it has returned all events that there are now, and begins has returned for their programs.
	flush() error
	// lost returns how many events found no room, and when the first of them was.
	lost() (count, since uint64)

	// detach ends the events. Those that exist can still be read.
	detach()
	// interrupt has next return os.ErrClosed.
	interrupt()
	close()
}

var errFlushed = errors.New("all events that there were have been read")

// program is the run of a program by a process. Its number, when it began by the clock of the events, tells it from others of the process.
type program struct {
	pid    uint32
	number uint64
}

// births are what is known of programs that have begun, until the event of that is read.
type births struct {
	mu sync.Mutex
	of map[program]*birth
}

// keep notes what a process runs.
func (b *births) keep(of program, its *birth) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.of) >= maxBirths {
		clear(b.of) // their events were lost
	}
	b.of[of] = its
}

// take returns what is known of a program, and forgets it; nil if nothing is.
func (b *births) take(of program) *birth {
	b.mu.Lock()
	defer b.mu.Unlock()
	its := b.of[of]
	delete(b.of, of)
	return its
}

const maxBirths = 1 << 14
