//go:build amd64 || arm64

package attach

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// A thread that runs Python has frames of its interpreter besides its stack. They are read at the call, as the thread is held
// there; afterwards they are others. The reader finds the interpreter of a process, and puts its layout into a map. As the kernel takes
// long to check a program with loops, one program follows the frames for all functions. It leaves them in room of the thread for the
// program that writes the event.

// Words of a layout, in the map.
const (
	pyInterpreters = iota
	pyNext
	pyThreads
	pyNextThread
	pyStatus
	pyThreadID
	pyFrame
	pyThrough
	pyPrevious
	pyCode
	pyInstruction
	pyIsIndex
	pyOwner
	pyHead   // of a code object: where what tells it from others begins, see headSize
	pyFirst  // and where that has the first line,
	pyFile   // and the addresses of strings
	pyName   //
	pyObject // how many bytes of a code object are copied
	pyLength // of a string
	pyASCII  //
	pyWide   //
	pySize   // of a bytes object
	pyBytes  //
	pyTurn   // no other program of a process has this number
	pyByText // 0 if code objects have numbers, and another at the same address another
	pyZero   // which the kernel does not know of: it follows a program by what it knows, and the less that is, the sooner it ends
	pyWords
)

const (
	maxPyThreads = 512 // and interpreters are looked through
	maxTries     = 3   // to find a thread
	oneTry       = 2 * maxPython
	maxPyCalls   = 1 << 11 // of threads that run Python at a time; three kilobytes each
	maxSeen      = 1 << 14 // code objects
)

// Behind the frames of a thread, from offPython on.
const (
	headSize = 88 // up to the pointer to the table of lines: all that does not change while the code object lives
	inHead   = mostSize - offPython
	inTexts  = inHead + headSize + 48
	maxFile  = 192 // bytes of the file's name, and of the function's, that are compared
	maxName  = 96
	pyRoom   = mostSize + inTexts - inHead + maxFile + maxName
)

// Room on the program's stack, below the call stack.
const (
	slotLayout      = slotRoom - 8  // the address of the layout, 0 if the process has none
	slotAt          = slotRoom - 16 // the thread or frame that is looked at
	slotSelf        = slotRoom - 24 // what tells the thread: see pyThreadID
	slotIndex       = slotRoom - 32
	slotRead        = slotRoom - 40
	slotCode        = slotRoom - 48
	slotInterpreter = slotCode
	slotFound       = slotWhere
	slotWhere       = slotRoom - 56
	slotWake        = slotRoom - 72 // a notice
	slotOwner       = slotRoom - 80
	slotSeenKey     = slotRoom - 88
	slotSeen        = slotSeenKey - seenSize // see seenPrint
	slotEnd         = slotSeen
)

// findLayout notes the layout of the process's interpreter.
func (m *bpf) findLayout() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotKey, asm.R1, asm.Word),
	}
	return append(append(ins, lookUp(m.python, slotKey)...), asm.StoreMem(asm.RFP, slotLayout, asm.R0, asm.DWord))
}

// follow reads the process's memory: at the address in a slot of the program's stack plus the
// offset in a word of the layout. It copies the result to the program's stack. R0 is 0 on success.
func follow(to int32, size int32, from int16, word int) asm.Instructions {
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

// room puts the address of the thread's room into R0, or jumps to the label "end" if there is none.
func (m *bpf) room() asm.Instructions {
	return append(roomIn(m.running, m.noFrames, "end"),
		asm.Mov.Reg(regEvent, asm.R0).WithSymbol("room"),
		asm.Add.Imm(regEvent, offPython),
	)
}

// followPython is the program that leaves the frames in the thread's room for an event: how many there are, and 16 bytes for each.
func (m *bpf) followPython() asm.Instructions {
	ins := append(asm.Instructions{asm.Mov.Imm(regRoom, 0)}, m.begin()...)
	ins = append(ins, m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "gone"))
	ins = append(ins, lookUp(m.rooms, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "gone"), asm.Mov.Reg(regRoom, asm.R0))
	ins = append(ins, store(regRoom, roomNew, 0)...)
	ins = append(ins, m.room()...)
	ins = append(ins, m.self()...)
	ins = append(ins, asm.StoreMem(asm.RFP, slotSelf, asm.R0, asm.DWord))
	ins = append(ins, m.findThread()...)

	// Its innermost frame, and from there outwards.
	ins = append(ins, store(regEvent, 0, 0)...)
	ins = append(ins, follow(slotAt, 8, slotAt, pyFrame)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, layoutWord(asm.R2, pyThrough)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, -1, "innermost"))
	ins = append(ins, follow(slotAt, 8, slotAt, pyThrough)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	first := store(asm.RFP, slotIndex, 0)
	first[0] = first[0].WithSymbol("innermost")
	ins = append(ins, first...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotAt, asm.DWord).WithSymbol("nextFrame"),
		asm.JEq.Imm(asm.R1, 0, "end"),
	)
	ins = append(ins, m.frameOfPython()...)
	ins = append(ins, follow(slotAt, 8, slotAt, pyPrevious)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, again(slotIndex, "nextFrame", maxPython)...)
	ins = append(ins,
		asm.JEq.Imm(regRoom, 0, "gone").WithSymbol("end"),
		asm.LoadMem(asm.R3, regRoom, roomNext, asm.DWord),
		asm.LoadMem(asm.R1, regRoom, roomNew, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "none new"),
	)
	ins = append(ins, m.goOn(asm.Mov.Imm(asm.R3, copyCode))...)
	ins = append(ins, asm.LoadMem(asm.R3, regRoom, roomNext, asm.DWord))
	ins = append(ins, m.goOn(asm.Mov.Reg(asm.R3, asm.R3).WithSymbol("none new"))...)
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("gone"), asm.Return())
}

// findThread leaves the address of Python's thread in slotAt, or jumps to the label "end". A thread of the system may have one in several
// interpreters; the one that runs says so. If two do, one of them was made by another thread of the system: nobody can know. Before
// 3.12 none says so: then there must be one interpreter, and in its list a thread that has not begun yet, which looks like the one
// that made it, is in front of that. As other threads end while the list is followed, the program runs again if it finds none.
func (m *bpf) findThread() asm.Instructions {
	follows := func(to int32, from int16, word int) asm.Instructions { return follow(to, 8, from, word) } // what cannot be read is 0
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
		asm.And.Imm(asm.R1, python.StatusRuns),
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
		asm.LoadMem(asm.R1, regEvent, 0, asm.DWord), // until there are frames, how often it was tried
		asm.Add.Imm(asm.R1, oneTry),
		asm.StoreMem(regEvent, 0, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, maxTries*oneTry, "unknown"),
	)
	ins = append(ins, m.goOn(asm.Mov.Imm(asm.R3, followPython))...)
	ins = append(ins, labelled("unknown", store(regEvent, 0, 0))...)
	return append(ins, asm.Ja.Label("end"), asm.Mov.Imm(asm.R0, 0).WithSymbol("thread"))
}

// again counts a round of a loop, and begins the next unless there were as many.
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
	ins := follow(slotCode, 8, slotAt, pyCode)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.And.Imm(asm.R1, ^int32(0x0f)),
		asm.StoreMem(asm.RFP, slotCode, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(asm.RFP, slotOwner, 0)...), store(asm.RFP, slotWhere, 0)...)
	ins = append(ins, layoutWord(asm.R2, pyOwner)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, -1, "noOwner"))
	ins = append(ins, follow(slotOwner, 1, slotAt, pyOwner)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotOwner, asm.DWord),
		asm.And.Imm(asm.R1, 0x07),
		asm.StoreMem(asm.RFP, slotOwner, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, python.OwnedByC, "seen"), // it runs no code
	)
	head := readHead("seen") // its first line stays 0, if the code object has none
	head[0] = head[0].WithSymbol("noOwner")
	ins = append(ins, head...)
	ins = append(ins, inHeadAt(asm.R1, pyFirst, asm.Word)...)
	ins = append(ins, asm.StoreMem(asm.RFP, slotWhere, asm.R1, asm.Word))
	ins = append(ins, m.see()...)
	ins = append(ins, follow(slotRead, 8, slotAt, pyInstruction)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, layoutWord(asm.R2, pyIsIndex)...)
	return append(ins,
		asm.LoadMem(asm.R3, asm.RFP, slotRead, asm.DWord),
		asm.JNE.Imm(asm.R2, 0, "isIndex"),
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.Sub.Reg(asm.R3, asm.R1),
		asm.StoreMem(asm.RFP, slotWhere+4, asm.R3, asm.Word).WithSymbol("isIndex"),
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.And.Imm(asm.R1, maxPython-1),
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
// register fs. On other architectures that depends on the C library, and threads are told apart by
// their numbers.
var threadBase = map[string]string{"amd64": "fsbase"}[runtime.GOARCH]

// self puts into R0 what threadID finds in the threads of Python.
func (m *bpf) self() asm.Instructions {
	if threadBase == "" {
		return asm.Instructions{asm.Mov.Reg32(asm.R0, regThread)}
	}
	ins := asm.Instructions{asm.FnGetCurrentTask.Call(), asm.Mov.Reg(asm.R3, asm.R0)}
	ins = append(ins, readKernel(m.threadBase, 8)...)
	return append(ins, asm.LoadMem(asm.R0, asm.RFP, slotWord, asm.DWord))
}

// threadID is where a thread of Python has what tells it; 0 if it has not.
func threadID(l python.Layout) uint64 {
	if threadBase == "" {
		return l.KernelID
	}
	return l.ThreadID
}

// runs tells the programs what a process's interpreter is like. No other that the process ever runs has the same turn.
func (m *bpf) runs(pid int, l python.Layout, turn uint64) error {
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
		l.Interpreters, l.Next, l.Threads, l.NextThread, l.Status, id, l.Frame, l.Through, l.Previous, l.Code, l.Instruction, isIndex, l.Owner,
		head, l.FirstLine - head, names.File - head, names.Name - head, names.Lines + 8,
		names.Length, names.ASCII, names.Wide, names.Size, names.Bytes, turn, byText, 0,
	}
	return m.python.Update(uint32(pid), value, ebpf.UpdateAny)
}

// see marks a frame whose code object is new, and notes it. The label at its end is "seen".
func (m *bpf) see() asm.Instructions {
	ins := append(print(), lookUp(m.seen, slotSeenKey)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "new"),
		asm.LoadMem(asm.R1, asm.R0, seenPrint, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotSeen+seenPrint, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "new"),
	)
	ins = append(ins, layoutWord(asm.R2, pyByText)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, 0, "seen"))
	for at := int16(seenFile); at < seenSize; at += 8 {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R0, at, asm.DWord), asm.StoreMem(asm.RFP, slotSeen+at, asm.R1, asm.DWord))
	}
	ins = append(ins, readTexts("new")...)
	return append(ins,
		asm.LoadMem(asm.R2, asm.RFP, slotSeen+seenTexts, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R2, "seen"),
		asm.LoadMem(asm.R2, asm.RFP, slotOwner, asm.DWord).WithSymbol("new"),
		asm.Or.Imm(asm.R2, python.NotCopied),
		asm.StoreMem(asm.RFP, slotOwner, asm.R2, asm.DWord),
		asm.LoadMem(asm.R1, regRoom, roomNew, asm.DWord),
		asm.JGE.Imm(asm.R1, maxNew, "seen"),
		asm.Mov.Reg(asm.R2, regRoom),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R3, asm.RFP, slotIndex, asm.DWord),
		asm.StoreMem(asm.R2, roomNewAt, asm.R3, asm.Byte),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(regRoom, roomNew, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("seen"),
	)
}

// copyCode is the program that copies a code object that is new, and then runs again for the next.
func (m *bpf) copyCode() asm.Instructions {
	ins := append(m.begin(), m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"))
	ins = append(ins, lookUp(m.rooms, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(regRoom, asm.R0))
	ins = append(ins, lookUp(m.running, slotThread)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "next"),
		asm.Mov.Reg(regEvent, asm.R0),
		asm.Add.Imm(regEvent, offPython),
		asm.LoadMem(asm.R1, regRoom, roomNew, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "next"),
		asm.JGT.Imm(asm.R1, maxNew, "next"),
		asm.Sub.Imm(asm.R1, 1),
		asm.StoreMem(regRoom, roomNew, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, regRoom),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, asm.R2, roomNewAt, asm.Byte),
		asm.StoreMem(asm.RFP, slotIndex, asm.R1, asm.DWord),
	)
	ins = append(ins, frameAt(asm.R4)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R4, 8, asm.DWord),
		asm.And.Imm(asm.R1, ^int32(0x0f)),
		asm.StoreMem(asm.RFP, slotCode, asm.R1, asm.DWord),
	)
	ins = append(append(ins, readHead("again")...), print()...)
	ins = append(ins, m.roomForCopy()...)
	ins = append(ins, copyParts()...)
	ins = append(ins, textsOf()...)
	ins = append(ins, submit(waits)...)
	ins = append(ins,
		asm.LoadMem(regEvent, asm.RFP, slotFrames, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotMissing, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "again"),
	)
	ins = append(ins, layoutWord(asm.R2, pyByText)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, 0, "known"))
	ins = append(ins, readTexts("copied")...)
	ins = append(ins,
		asm.StoreMem(asm.RFP, slotSeen+seenTexts, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.seen.FD()).WithSymbol("known"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotSeenKey),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotSeen),
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
	ins = append(ins, m.goOn(asm.Mov.Imm(asm.R3, copyCode).WithSymbol("again"))...)
	ins = append(ins, m.goOn(asm.LoadMem(asm.R3, regRoom, roomNext, asm.DWord).WithSymbol("next"))...)
	return append(ins, end()...)
}

// roomForCopy takes room in the ring, for what is in it from then on, or jumps to "again". Events are more than names: once the ring is half
// full there is none.
func (m *bpf) roomForCopy() asm.Instructions {
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
	ins = append(ins, follow(slotWord, 8, slotLines, pySize)...)
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
