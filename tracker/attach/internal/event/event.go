// Package event has what the parts of a watcher share: the events that a source reports, their format in
// a ring buffer, the functions that are watched and their effects, and the interface of a source.
package event

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// Phase is the kind of an event: a moment of a call, or of the life of a process.
type Phase uint32

const (
	AtEntry Phase = iota
	AtReturn
	Forked       // Args[0] is the new process
	Execed       // see Event.Comm
	Exited       // a thread; Args[0] is 1 if it was the last of its process
	CodeLoaded   // more code was mapped: Start has the mappings
	StackPart    // no event: a part of the stack of the thread's next event
	CodeUnloaded // code may be unmapped from now on
	PythonCode   // the thread runs a new code object of Python: see CodeObject
	Joined       // the process is watched from now on: Args[0] is when its program began, see Machine
)

// Event is what a probe, or the preloaded library, reports.
type Event struct {
	Time         uint64 // ns of the machine's monotonic clock
	PID, TID     uint32
	Function     uint32 // index in the watched functions
	Phase        Phase
	Result       int32
	Returned     uint64    // all 64 bits of the result
	Out          uint64    // what the call wrote where its first argument points
	Pitch        uint64    // the second result of a pitched allocation: its pitch
	Args         [6]uint64 // the registers of the arguments
	Desc         [5]uint64 // the array descriptor that the second argument points to
	Generation   uint32    // of the process, when the stack was unwound: see Source.LoadUnwindRule
	Depth        int       // number of frames found by unwind rules
	Total        int       // number of all frames: those beyond Depth come from frame pointers and may be wrong
	End          StackEnd  // why Depth is not larger
	TotalEnd     StackEnd  // why Total is not larger
	Stack        [MaxFrames]uint64
	Python       []uint64 // two words for each frame of Python; valid until the next event
	pythonBuffer [2 * MaxPython]uint64
	StackCopy    *StackCopy         // from the last certain frame on; valid until the next event
	CodeObject   []byte             // for PythonCode: a copy of a code object, see python.Processes.AddCode; valid until the next event
	Start        *StartRecord       // for Forked, Execed and CodeLoaded: what the process itself reported; nil if nothing
	Executable   *procfs.Executable // for Execed: what the kernel knows of it; nil if it does not report it
	LoadedDriver bool               // for Forked and Execed: the preloaded library reported it
}

// Comm returns the kernel's name of a program after an exec: the first 15 bytes of the name of its
// file or script; "" if the event has none.
func (e *Event) Comm() string {
	var name [16]byte
	binary.NativeEndian.PutUint64(name[:], e.Args[3])
	binary.NativeEndian.PutUint64(name[8:], e.Args[4])
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return strings.ToValidUTF8(string(text), "\uFFFD")
}

// LostBefore returns, for the end of a program by Execed or Exited, how many of its events were dropped. It is
// counted by process only where every process is watched: see Machine.
func (e *Event) LostBefore() uint64 { return e.Args[5] }

// StackEnd is why a stack that a probe unwound ends.
type StackEnd uint8

const (
	NotReported     StackEnd = iota // by the preloaded library
	Complete                        // at the outermost frame
	NoCaller                        // no caller
	UnknownFunction                 // no unwind rule is loaded for the last address, so the stack was copied
	CopyDropped                     // the same, but the ring buffer was too full for a copy
	Truncated                       // there are more than MaxFrames
)

// StackCopy is what the reader needs to unwind from where a probe stopped.
type StackCopy struct {
	SP, FP        uint64
	SavedReturn   uint64 // the return address that the trampoline of a uretprobe replaces; 0 if none is replaced
	SavedReturnSP uint64 // the stack pointer after that return
	Stack         []byte // from the stack pointer on
}

// MaxFrames is the maximum number of native frames of a stack.
const MaxFrames = 128

// MaxPython is the maximum number of frames of Python.
const MaxPython = 128

// Byte offsets of an event's fields in the ring buffer.
const (
	OffTime   = 0
	OffThread = 8
	OffWhat   = 16 // function, then phase
	OffResult = 24
	OffOut    = 32
	OffPitch  = 40
	OffArgs   = 48
	ShortSize = 96 // of an event without stack
	// Of an event with a stack:
	OffDesc   = ShortSize
	OffDepth  = 136 // a byte each: Depth, End, Total, TotalEnd; then the generation
	OffPython = 144 // number of frames of Python; then two words for each, and a word for each native frame
	OffFrames = OffPython + 8
	MostSize  = OffFrames + 16*MaxPython + 8*MaxFrames

	// Of a part of the stack: the words of StackCopy, the part's offset, and its bytes.
	OffUnknown = OffResult
	OffPart    = OffUnknown + 40
	PartSize   = OffPart + Chunk
)

// Bytes of the word at OffDepth.
const (
	InDepth = iota
	InEnd
	InTotal
	InTotalEnd
)

// Size of a copied stack, and of its parts: the stack may end within a part.
const (
	MaxCopy   = 16 << 10
	ChunkBits = 10
	Chunk     = 1 << ChunkBits
)

// Decode parses a record of the ring buffer. The error says that it is too short.
func (e *Event) Decode(b []byte) error {
	if len(b) < ShortSize {
		return fmt.Errorf("an event of %d bytes: want %d at least", len(b), ShortSize)
	}
	u := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	e.Time = u(OffTime)
	e.PID, e.TID = uint32(u(OffThread)>>32), uint32(u(OffThread))
	e.Function, e.Phase = uint32(u(OffWhat)), Phase(u(OffWhat)>>32)
	e.Returned, e.Out, e.Pitch = u(OffResult), u(OffOut), u(OffPitch)
	e.Result = int32(e.Returned)
	for i := range e.Args {
		e.Args[i] = u(OffArgs + 8*i)
	}
	e.Depth, e.Total, e.End, e.TotalEnd = 0, 0, NotReported, NotReported
	e.Start, e.StackCopy, e.Python, e.CodeObject, e.LoadedDriver = nil, nil, nil, nil, false
	if e.Phase == PythonCode {
		e.CodeObject = b
	}
	if e.Executable = nil; e.Phase == Execed && len(b) > ShortSize {
		path, _, _ := bytes.Cut(b[ShortSize:], []byte{0})
		e.Executable = &procfs.Executable{Path: string(path), CodeEnd: e.Returned, Inode: e.Out, Parent: int(e.Pitch)}
	}
	if len(b) < OffFrames || e.Phase >= StackPart || e.Phase == Execed {
		return nil
	}
	for i := range e.Desc {
		e.Desc[i] = u(OffDesc + 8*i)
	}
	python := int(min(u(OffPython), MaxPython))
	if e.Total = int(b[OffDepth+InTotal]); e.Total > MaxFrames || len(b) < OffFrames+16*python+8*e.Total {
		return fmt.Errorf("an event of %d bytes: want those of %d frames", len(b), python+e.Total)
	}
	e.Depth, e.End, e.TotalEnd, e.Generation = min(int(b[OffDepth+InDepth]), e.Total), StackEnd(b[OffDepth+InEnd]), StackEnd(b[OffDepth+InTotalEnd]), uint32(u(OffDepth)>>32)
	e.Python = e.pythonBuffer[:2*python]
	for i := range e.Python {
		e.Python[i] = u(OffFrames + 8*i)
	}
	for i := range e.Stack[:e.Total] {
		e.Stack[i] = u(OffFrames + 16*python + 8*i)
	}
	return nil
}

// Frames returns the return addresses that were found by unwind rules, innermost first.
func (e *Event) Frames() []uint64 { return e.Stack[:e.Depth] }
