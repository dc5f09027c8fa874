//go:build amd64 || arm64

package attach

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// A thread that runs Python has frames of its interpreter besides its stack. They are read during the
// call, while the thread is stopped. The reader finds the interpreter of a process, and puts its layout
// into a map. The kernel takes long to verify a program with loops, so one program walks the frames for
// all functions, and leaves them in a scratch buffer of the thread for the program that writes the event.

// Words of a layout, in the map.
const (
	pyInterpreters = iota
	pyNext
	pyThreads
	pyNextThread
	pyStatus
	pyThreadID
	pyFrame
	pyIndirect
	pyPrevious
	pyCode
	pyInstruction
	pyIsIndex
	pyOwner
	pyHead        // offset of the head in a code object: see headSize
	pyFirst       // offset in the head: the first line,
	pyFile        // the addresses of strings
	pyName        //
	pyObject      // number of bytes of a code object to copy
	pyLength      // of a string
	pyASCII       //
	pyWide        //
	pySize        // of a bytes object
	pyBytes       //
	pyProgram     // identifies the program that the process runs
	pyCompareText // 1 if code objects have no version number, so that their strings are compared
	pyZero        // 0, which the verifier does not know: fewer known states make it faster
	pyWords
)

const (
	maxPyThreads = 512 // and interpreters that are searched
	maxTries     = 3   // to find the thread
	oneTry       = 2 * event.MaxPython
	maxPyCalls   = 1 << 11 // threads that run Python at the same time, 3 KiB each
	maxKnownCode = 1 << 14 // code objects
)

// Behind the frames in the scratch buffer, from offPython on.
const (
	headSize      = 88 // up to the pointer to the line table: all that does not change while a code object lives
	inHead        = event.MostSize - event.OffPython
	inTexts       = inHead + headSize + 48
	maxFile       = 192 // compared bytes of the file's name, and of the function's
	maxName       = 96
	pyScratchSize = event.MostSize + inTexts - inHead + maxFile + maxName
)

// Stack slots, below those of the call.
const (
	slotLayout      = slotScratch - 8  // address of the layout; 0 if the process has none
	slotAt          = slotScratch - 16 // the current thread or frame
	slotSelf        = slotScratch - 24 // identifies the thread: see pyThreadID
	slotIndex       = slotScratch - 32
	slotRead        = slotScratch - 40
	slotCode        = slotScratch - 48
	slotInterpreter = slotCode
	slotFound       = slotWhere
	slotWhere       = slotScratch - 56
	slotWake        = slotScratch - 72 // a wakeUp
	slotOwner       = slotScratch - 80
	slotKnownKey    = slotScratch - 88
	slotKnown       = slotKnownKey - knownSize // see knownDigest
	slotEnd         = slotKnown
)

// findLayout puts the address of the process's layout into R0 and slotLayout.
func (m *bpf) findLayout() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotKey, asm.R1, asm.Word),
	}
	return append(append(ins, lookUp(m.python, slotKey)...), asm.StoreMem(asm.RFP, slotLayout, asm.R0, asm.DWord))
}

// readField copies a field of the process's memory, at the address in a stack slot plus the offset in a
// word of the layout, to a stack slot. R0 is 0 on success.
func readField(to int32, size int32, from int16, word int) asm.Instructions {
	return append(layoutWord(asm.R3, word),
		asm.LoadMem(asm.R1, asm.RFP, from, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R1),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, to),
		asm.Mov.Imm(asm.R2, size),
		asm.FnProbeReadUser.Call(),
	)
}

func layoutWord(to asm.Register, word int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, slotLayout, asm.DWord),
		asm.LoadMem(to, asm.R1, int16(8*word), asm.DWord),
	}
}

// pythonScratch puts the address of the frames in the thread's scratch buffer into regEvent, or jumps to
// the label "end" if there is none.
func (m *bpf) pythonScratch() asm.Instructions {
	return append(lookUpScratch(m.pythonFrames, m.zeroPythonFrames, "end"),
		asm.Mov.Reg(regEvent, asm.R0).WithSymbol("scratch"),
		asm.Add.Imm(regEvent, event.OffPython),
	)
}

// walkPython is the program that writes the frames into the thread's scratch buffer: their number, and
// 16 bytes for each.
func (m *bpf) walkPython() asm.Instructions {
	ins := append(asm.Instructions{asm.Mov.Imm(regScratch, 0)}, m.prologue()...)
	ins = append(ins, m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "gone"))
	ins = append(ins, lookUp(m.scratch, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "gone"), asm.Mov.Reg(regScratch, asm.R0))
	ins = append(ins, store(regScratch, scratchNewCode, 0)...)
	ins = append(ins, m.pythonScratch()...)
	ins = append(ins, m.self()...)
	ins = append(ins, asm.StoreMem(asm.RFP, slotSelf, asm.R0, asm.DWord))
	ins = append(ins, m.findThread()...)

	// From the innermost frame outwards.
	ins = append(ins, store(regEvent, 0, 0)...)
	ins = append(ins, readField(slotAt, 8, slotAt, pyFrame)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, layoutWord(asm.R2, pyIndirect)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, -1, "innermost"))
	ins = append(ins, readField(slotAt, 8, slotAt, pyIndirect)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	first := store(asm.RFP, slotIndex, 0)
	first[0] = first[0].WithSymbol("innermost")
	ins = append(ins, first...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord).WithSymbol("nextFrame"),
		asm.JEq.Imm(asm.R1, 0, "end"),
	)
	ins = append(ins, m.frameOfPython()...)
	ins = append(ins, readField(slotAt, 8, slotAt, pyPrevious)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, again(slotIndex, "nextFrame", event.MaxPython)...)
	ins = append(ins,
		asm.JEq.Imm(regScratch, 0, "gone").WithSymbol("end"),
		asm.LoadMem(asm.R3, regScratch, scratchNext, asm.DWord),
		asm.LoadMem(asm.R1, regScratch, scratchNewCode, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "none new"),
	)
	ins = append(ins, m.tailCall(asm.Mov.Imm(asm.R3, tailCopyCode))...)
	ins = append(ins, asm.LoadMem(asm.R3, regScratch, scratchNext, asm.DWord))
	ins = append(ins, m.tailCall(asm.Mov.Reg(asm.R3, asm.R3).WithSymbol("none new"))...)
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("gone"), asm.Return())
}

// findThread puts the address of Python's thread into slotAt, or jumps to the label "end". A thread
// of the system may have a Python thread in several interpreters; its status says which one is
// bound. If two are bound, another thread of the system made one of them, and the right one is
// unknown. Before 3.12 threads have no such status: there must be a single interpreter then. In its
// list, a thread that has not started yet looks like the thread that made it, and is in front of
// that. Other threads may end while the list is walked, so the program runs again if it finds none.
func (m *bpf) findThread() asm.Instructions {
	follows := func(to int32, from int16, word int) asm.Instructions { return readField(to, 8, from, word) } // 0 if it cannot be read
	labelled := func(label string, ins asm.Instructions) asm.Instructions {
		ins[0] = ins[0].WithSymbol(label)
		return ins
	}
	ins := append(store(asm.RFP, slotIndex, 0), store(asm.RFP, slotInterpreter, 0)...)
	ins = append(ins, layoutWord(asm.R1, pyZero)...)
	ins = append(ins, asm.StoreMem(asm.RFP, slotFound, asm.R1, asm.DWord))
	ins = append(ins, follows(slotInterpreter, slotInterpreter, pyInterpreters)...)
	ins = append(ins, layoutWord(asm.R2, pyStatus)...)
	ins = append(ins, asm.JNE.Imm(asm.R2, -1, "threads"))
	ins = append(ins, follows(slotAt, slotInterpreter, pyNext)...)
	ins = append(ins, asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord), asm.JNE.Imm(asm.R1, 0, "unknown"))

	ins = append(ins, labelled("threads", follows(slotAt, slotInterpreter, pyThreads))...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord).WithSymbol("nextThread"),
		asm.JEq.Imm(asm.R1, 0, "nextInterpreter"),
	)
	ins = append(ins, follows(slotRead, slotAt, pyThreadID)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotRead, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotSelf, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "otherThread"),
	)
	ins = append(ins, layoutWord(asm.R2, pyStatus)...)
	ins = append(ins,
		asm.JNE.Imm(asm.R2, -1, "status"),
		asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord),
		asm.StoreMem(asm.RFP, slotFound, asm.R1, asm.DWord),
		asm.Ja.Label("otherThread"),
	)
	ins = append(ins, labelled("status", follows(slotRead, slotAt, pyStatus))...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotRead, asm.DWord),
		asm.And.Imm(asm.R1, python.StatusBound),
		asm.JNE.Imm(asm.R1, 0, "found"),
	)
	ins = append(ins, labelled("otherThread", follows(slotAt, slotAt, pyNextThread))...)
	ins = append(ins, again(slotIndex, "nextThread", maxPyThreads)...)
	ins = append(ins,
		asm.Ja.Label("unknown"),
		asm.LoadMem(asm.R1, asm.RFP, slotFound, asm.DWord).WithSymbol("found"),
		asm.JNE.Imm(asm.R1, 0, "unknown"),
		asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord),
		asm.StoreMem(asm.RFP, slotFound, asm.R1, asm.DWord),
	)
	ins = append(ins, labelled("nextInterpreter", follows(slotInterpreter, slotInterpreter, pyNext))...)
	ins = append(ins, asm.LoadMem(asm.R1, asm.RFP, slotInterpreter, asm.DWord), asm.JEq.Imm(asm.R1, 0, "all"))
	ins = append(ins, again(slotIndex, "threads", maxPyThreads)...)
	ins = append(ins,
		asm.Ja.Label("unknown"),
		asm.LoadMem(asm.R1, asm.RFP, slotFound, asm.DWord).WithSymbol("all"),
		asm.StoreMem(asm.RFP, slotAt, asm.R1, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "thread"),
		asm.LoadMem(asm.R1, regEvent, 0, asm.DWord), // the number of tries, until there are frames
		asm.Add.Imm(asm.R1, oneTry),
		asm.StoreMem(regEvent, 0, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, maxTries*oneTry, "unknown"),
	)
	ins = append(ins, m.tailCall(asm.Mov.Imm(asm.R3, tailPython))...)
	ins = append(ins, labelled("unknown", store(regEvent, 0, 0))...)
	return append(ins, asm.Ja.Label("end"), asm.Mov.Imm(asm.R0, 0).WithSymbol("thread"))
}

// again counts an iteration of a loop, and starts the next unless there were most.
func again(count int16, label string, most int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, count, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, count, asm.R1, asm.DWord),
		asm.JLT.Imm(asm.R1, most, label),
	}
}

// frameOfPython writes one frame: the address of the code object, whose lowest bits say who owns
// the frame, then the position in the code and the function's first line.
func (m *bpf) frameOfPython() asm.Instructions {
	ins := readField(slotCode, 8, slotAt, pyCode)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.And.Imm(asm.R1, ^int32(0x0f)),
		asm.StoreMem(asm.RFP, slotCode, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(asm.RFP, slotOwner, 0)...), store(asm.RFP, slotWhere, 0)...)
	ins = append(ins, layoutWord(asm.R2, pyOwner)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, -1, "noOwner"))
	ins = append(ins, readField(slotOwner, 1, slotAt, pyOwner)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotOwner, asm.DWord),
		asm.And.Imm(asm.R1, 0x07),
		asm.StoreMem(asm.RFP, slotOwner, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, python.OwnedByInterpreter, "seen"), // the frame runs no code
	)
	head := readHead("seen") // the first line stays 0 if the code object cannot be read
	head[0] = head[0].WithSymbol("noOwner")
	ins = append(ins, head...)
	ins = append(ins, inHeadAt(asm.R1, pyFirst, asm.Word)...)
	ins = append(ins, asm.StoreMem(asm.RFP, slotWhere, asm.R1, asm.Word))
	ins = append(ins, m.checkKnown()...)
	ins = append(ins, readField(slotRead, 8, slotAt, pyInstruction)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, layoutWord(asm.R2, pyIsIndex)...)
	return append(ins,
		asm.LoadMem(asm.R3, asm.RFP, slotRead, asm.DWord),
		asm.JNE.Imm(asm.R2, 0, "isIndex"),
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.Sub.Reg(asm.R3, asm.R1),
		asm.StoreMem(asm.RFP, slotWhere+4, asm.R3, asm.Word).WithSymbol("isIndex"),
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.And.Imm(asm.R1, event.MaxPython-1),
		asm.LSh.Imm(asm.R1, 4),
		asm.Mov.Reg(asm.R4, regEvent),
		asm.Add.Reg(asm.R4, asm.R1),
		asm.LoadMem(asm.R2, asm.RFP, slotOwner, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, slotCode, asm.DWord),
		asm.Or.Reg(asm.R3, asm.R2),
		asm.StoreMem(asm.R4, 8, asm.R3, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, slotWhere, asm.DWord),
		asm.StoreMem(asm.R4, 16, asm.R3, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(regEvent, 0, asm.R1, asm.DWord),
	)
}

// threadBase is the offset in struct thread_struct of the address that pthread_self returns: the
// register fs. On other architectures that depends on the C library, and threads are identified by
// their IDs.
var threadBase = map[string]string{"amd64": "fsbase"}[runtime.GOARCH]

// self puts the identity of the thread into R0, as the threads of Python have it at threadID.
func (m *bpf) self() asm.Instructions {
	if threadBase == "" {
		return asm.Instructions{asm.Mov.Reg32(asm.R0, regThread)}
	}
	ins := asm.Instructions{asm.FnGetCurrentTask.Call(), asm.Mov.Reg(asm.R3, asm.R0)}
	ins = append(ins, readKernel(m.threadBase, 8)...)
	return append(ins, asm.LoadMem(asm.R0, asm.RFP, slotWord, asm.DWord))
}

// threadID returns the offset of the identity in a thread of Python; 0 if it has none.
func threadID(l python.Layout) uint64 {
	if threadBase == "" {
		return l.KernelID
	}
	return l.ThreadID
}

// setPythonLayout puts the layout of a process's interpreter into the map. program identifies what the
// process runs.
func (m *bpf) setPythonLayout(pid int, l python.Layout, program uint64) error {
	id := threadID(l)
	if id == 0 {
		return fmt.Errorf("%v does not tell its threads", l)
	}
	isIndex := uint64(0)
	if l.IsIndex {
		isIndex = 1
	}
	names := l.Names()
	head := names.Lines + 8 - headSize
	byText := uint64(0)
	if l.Version < 0x030c {
		byText = 1
	}
	for _, at := range []uint64{l.FirstLine, names.File, names.Name} {
		if at-head > headSize-8 || names.Lines < headSize || names.Lines+8 > uint64(python.MostOf[python.Object]) {
			return fmt.Errorf("%v has its names in another order", l)
		}
	}
	value := [pyWords]uint64{
		l.Interpreters, l.Next, l.Threads, l.NextThread, l.Status, id, l.Frame, l.Indirect, l.Previous, l.Code, l.Instruction, isIndex, l.Owner,
		head, l.FirstLine - head, names.File - head, names.Name - head, names.Lines + 8,
		names.Length, names.ASCII, names.Wide, names.Size, names.Bytes, program, byText, 0,
	}
	return m.python.Update(uint32(pid), value, ebpf.UpdateAny)
}

// checkKnown marks a frame whose code object is unknown, and lists it for tailCopyCode. The label at its
// end is "seen".
func (m *bpf) checkKnown() asm.Instructions {
	ins := append(codeDigest(), lookUp(m.knownCode, slotKnownKey)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "new"),
		asm.LoadMem(asm.R1, asm.R0, knownDigest, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotKnown+knownDigest, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "new"),
	)
	ins = append(ins, layoutWord(asm.R2, pyCompareText)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, 0, "seen"))
	for at := int16(knownFile); at < knownSize; at += 8 {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R0, at, asm.DWord), asm.StoreMem(asm.RFP, slotKnown+at, asm.R1, asm.DWord))
	}
	ins = append(ins, readTexts("new")...)
	return append(ins,
		asm.LoadMem(asm.R2, asm.RFP, slotKnown+knownTexts, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R2, "seen"),
		asm.LoadMem(asm.R2, asm.RFP, slotOwner, asm.DWord).WithSymbol("new"),
		asm.Or.Imm(asm.R2, python.NotCopied),
		asm.StoreMem(asm.RFP, slotOwner, asm.R2, asm.DWord),
		asm.LoadMem(asm.R1, regScratch, scratchNewCode, asm.DWord),
		asm.JGE.Imm(asm.R1, maxNew, "seen"),
		asm.Mov.Reg(asm.R2, regScratch),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R3, asm.RFP, slotIndex, asm.DWord),
		asm.StoreMem(asm.R2, scratchNewCodeAt, asm.R3, asm.Byte),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(regScratch, scratchNewCode, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("seen"),
	)
}

// copyCode is the program that copies an unknown code object, and runs again for the next.
func (m *bpf) copyCode() asm.Instructions {
	ins := append(m.prologue(), m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"))
	ins = append(ins, lookUp(m.scratch, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(regScratch, asm.R0))
	ins = append(ins, lookUp(m.pythonFrames, slotThread)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "next"),
		asm.Mov.Reg(regEvent, asm.R0),
		asm.Add.Imm(regEvent, event.OffPython),
		asm.LoadMem(asm.R1, regScratch, scratchNewCode, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "next"),
		asm.JGT.Imm(asm.R1, maxNew, "next"),
		asm.Sub.Imm(asm.R1, 1),
		asm.StoreMem(regScratch, scratchNewCode, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, regScratch),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, asm.R2, scratchNewCodeAt, asm.Byte),
		asm.StoreMem(asm.RFP, slotIndex, asm.R1, asm.DWord),
	)
	ins = append(ins, frameAt(asm.R4)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R4, 8, asm.DWord),
		asm.And.Imm(asm.R1, ^int32(0x0f)),
		asm.StoreMem(asm.RFP, slotCode, asm.R1, asm.DWord),
	)
	ins = append(append(ins, readHead("again")...), codeDigest()...)
	ins = append(ins, m.reserveCopy()...)
	ins = append(ins, copyParts()...)
	ins = append(ins, textsOf()...)
	ins = append(ins, submit(noWake)...)
	ins = append(ins,
		asm.LoadMem(regEvent, asm.RFP, slotFrames, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotMissing, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "again"),
	)
	ins = append(ins, layoutWord(asm.R2, pyCompareText)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, 0, "known"))
	ins = append(ins, readTexts("copied")...)
	ins = append(ins,
		asm.StoreMem(asm.RFP, slotKnown+knownTexts, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.knownCode.FD()).WithSymbol("known"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotKnownKey),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotKnown),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
	frame := frameAt(asm.R4)
	frame[0] = frame[0].WithSymbol("copied")
	ins = append(ins, frame...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R4, 8, asm.DWord),
		asm.And.Imm(asm.R1, ^int32(python.NotCopied)),
		asm.StoreMem(asm.R4, 8, asm.R1, asm.DWord),
	)
	ins = append(ins, m.tailCall(asm.Mov.Imm(asm.R3, tailCopyCode).WithSymbol("again"))...)
	ins = append(ins, m.tailCall(asm.LoadMem(asm.R3, regScratch, scratchNext, asm.DWord).WithSymbol("next"))...)
	return append(ins, end()...)
}

// reserveCopy reserves a copy in the ring buffer, or jumps to "again". Events matter more than names: if
// the ring buffer is half full, nothing is copied.
func (m *bpf) reserveCopy() asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Imm(asm.R2, 0), // BPF_RB_AVAIL_DATA
		asm.FnRingbufQuery.Call(),
		asm.JGE.Imm(asm.R0, int32(m.ring.MaxEntries()/2), "again"),
	}
	for _, it := range []struct {
		word int
		to   int16
	}{{pyFile, slotFile}, {pyName, slotName}} {
		ins = append(ins, inHeadAt(asm.R1, it.word, asm.DWord)...)
		ins = append(ins, asm.StoreMem(asm.RFP, it.to, asm.R1, asm.DWord))
	}
	ins = append(ins,
		asm.LoadMem(asm.R1, regEvent, inHead+headSize-8, asm.DWord),
		asm.StoreMem(asm.RFP, slotLines, asm.R1, asm.DWord),
	)
	ins = append(ins, readField(slotWord, 8, slotLines, pySize)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "again"))
	ins = append(ins, layoutWord(asm.R2, pyBytes)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.StoreMem(asm.RFP, slotSize, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, slotFrames, regEvent, asm.DWord),
		asm.JGT.Imm(asm.R2, fewLines, "many lines"),
	)
	take := func(most int) asm.Instructions {
		return append(store(asm.RFP, slotMost, int32(most)),
			asm.LoadMapPtr(asm.R1, m.ring.FD()),
			asm.Mov.Imm(asm.R2, int32(python.CopySize(most))),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnRingbufReserve.Call(),
		)
	}
	ins = append(append(ins, take(fewLines)...), asm.Ja.Label("taken"))
	many := take(python.MostOf[python.Lines])
	many[0] = many[0].WithSymbol("many lines")
	ins = append(ins, many...)
	return append(ins,
		asm.JEq.Imm(asm.R0, 0, "again").WithSymbol("taken"),
		asm.Mov.Reg(regEvent, asm.R0),
	)
}
