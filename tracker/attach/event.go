package attach

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// phase is the moment that an event tells of: in a call, or in the life of a process.
type phase uint32

const (
	atEntry phase = iota
	atReturn
	forked // args[0] is the new process
	execed
	exited // a thread; args[0] is 1 if the whole process did
	loaded // more code: program has the mappings
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
	depth      int64     // bytes of stack, negative if it could not be taken
	stack      [maxFrames]uint64
	python     []uint64 // two words for each frame of Python; valid until the next event
	pythonRoom [2 * maxPython]uint64
	hash       uint64           // of the stack that the frame pointers gave
	saved      [maxSaved]uint64 // the registers of savedRegs, if there is a copy
	copied     []byte           // of the stack, from the stack pointer on; valid until the next event
	program    *birth           // for forked, execed and loaded: what the process itself reported; nil if it did not
}

// maxFrames is the most frames that a stack has.
const maxFrames = 64

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
	offDesc   = 96
	offDepth  = 136
	offStack  = 144
	shortSize = offStack // of an event without stack
	wholeSize = offStack + 8*maxFrames

	// Of an event of a process that runs Python, and of one with a copy of the stack:
	offPython  = wholeSize // how many frames, and for each 16 bytes
	pythonSize = offPython + 8 + 16*maxPython
	// Of an event with a copy of the stack:
	offHash   = pythonSize
	offCopied = offHash + 8 // how many bytes there are
	offSaved  = offCopied + 8
	offCopy   = offSaved + 8*maxSaved
)

// maxSaved is how many registers an event has room for.
const maxSaved = 14

// savedReg is a register that tells where callers are: its number in DWARF, and where the kernel has it.
type savedReg struct {
	number int
	offset int16
}

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
	e.depth, e.program, e.copied, e.python = 0, nil, nil, nil
	if len(b) < wholeSize {
		return nil
	}
	for i := range e.desc {
		e.desc[i] = u(offDesc + 8*i)
	}
	e.depth = min(int64(u(offDepth)), 8*maxFrames)
	for i := range max(0, e.depth/8) {
		e.stack[i] = u(offStack + 8*int(i))
	}
	if len(b) < offPython+8 {
		return nil
	}
	e.python = e.pythonRoom[:2*min(u(offPython), uint64(len(b)-offPython-8)/16, maxPython)]
	for i := range e.python {
		e.python[i] = u(offPython + 8 + 8*i)
	}
	if len(b) < offCopy {
		return nil
	}
	e.hash = u(offHash)
	for i := range e.saved {
		e.saved[i] = u(offSaved + 8*i)
	}
	e.copied = b[offCopy:][:min(u(offCopied), uint64(len(b)-offCopy))]
	return nil
}

// frames returns the return addresses, innermost first.
func (e *event) frames() []uint64 { return e.stack[:max(0, e.depth/8)] }

// feed is where events come from: probes in the kernel, or a library in the programs.
type feed interface {
	// watch begins to report on a process, and on all that it will start.
	watch(pid int) error
	// forget ends the reports on a process. Those that it has started are reported on.
	forget(pid int)
	// library probes the file at path, which holds the functions of a library that is watched.
	library(path, library string) error
	// environ returns the environment of a program that is to be watched.
	environ(env []string) []string

	// runs tells how a process's interpreter of Python is laid out; runsOther, that the process has ended or runs another program.
	runs(pid int, l python.Layout) error
	runsOther(pid int)
	// readNames has the names of Python's functions read as soon as they are first seen in a call.
	readNames(of *python.Processes)

	// believe says that the stack with this hash, found by frame pointers, is complete: from now on
	// it is sent without a copy of the stack's memory.
	believe(hash uint64)

	// next waits for an event. The error is errFlushed or os.ErrClosed, or says what was
	// lost: the next call may succeed.
	next(e *event) error
	// flush has next return errFlushed once it has returned all events that there are now.
	flush() error
	// lost returns how many events found no room, and when the first of them was.
	lost() (count, since uint64)

	// detach ends the events: those that there are can still be read.
	detach()
	// interrupt has next return os.ErrClosed.
	interrupt()
	close()
}

var errFlushed = errors.New("all events that there were have been read")
