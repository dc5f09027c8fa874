//go:build amd64 || arm64

package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"

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
	pyFirstLine
	pyZero // which the kernel does not know of: it follows a program by what it knows, and the less that is, the sooner it ends
	pyWords
)

const (
	maxPyThreads = 512 // and interpreters are looked through
	maxTries     = 3   // to find a thread
	oneTry       = 2 * maxPython
	maxPyCalls   = 1 << 11 // of threads that run Python at a time; three kilobytes each
	maxSeen      = 1 << 14 // code objects
	soonGoneSize = 24      // bytes that the reader of what is soon gone gets
	maxPath      = 256     // and of the path of a program that begins, with its 0
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
	slotPid         = slotRoom - 64 // from here, three words for the reader of what is soon gone
	slotWake        = slotRoom - 72 // a notice
	slotBegun       = slotPid - soonGoneSize - maxPath
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
	ins := append(m.begin(), m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"))
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
	last := lookUp(m.rooms, slotThread)
	last[0] = last[0].WithSymbol("end")
	ins = append(ins, last...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "gone"))
	ins = append(ins, m.goOn(asm.LoadMem(asm.R3, asm.R0, roomNext, asm.DWord))...)
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
	ins = append(ins, store(asm.RFP, slotWhere, 0)...)
	ins = append(ins, follow(slotWhere, 4, slotCode, pyFirstLine)...) // 0 if the code object has none
	ins = append(ins, follow(slotRead, 8, slotAt, pyInstruction)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "end"))
	ins = append(ins, layoutWord(asm.R2, pyIsIndex)...)
	ins = append(ins,
		asm.LoadMem(asm.R3, asm.RFP, slotRead, asm.DWord),
		asm.JNE.Imm(asm.R2, 0, "isIndex"),
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.Sub.Reg(asm.R3, asm.R1),
		asm.StoreMem(asm.RFP, slotWhere+4, asm.R3, asm.Word).WithSymbol("isIndex"),
	)
	ins = append(ins, m.see()...)
	ins = append(ins, store(asm.RFP, slotRead, 0)...)
	ins = append(ins, layoutWord(asm.R2, pyOwner)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, -1, "noOwner"))
	ins = append(ins, follow(slotRead, 1, slotAt, pyOwner)...)
	return append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord).WithSymbol("noOwner"),
		asm.And.Imm(asm.R1, maxPython-1),
		asm.LSh.Imm(asm.R1, 4),
		asm.Mov.Reg(asm.R4, regEvent),
		asm.Add.Reg(asm.R4, asm.R1),
		asm.LoadMem(asm.R2, asm.RFP, slotRead, asm.DWord),
		asm.And.Imm(asm.R2, 0x0f),
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

// see tells the reader of what is soon gone of a code object that is new: the process may end soon, or free it.
func (m *bpf) see() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotPid, asm.R1, asm.DWord),
		asm.LSh.Imm(asm.R1, 47), // above the addresses of programs
		asm.LoadMem(asm.R2, asm.RFP, slotCode, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.RFP, slotRead, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.seen.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotRead),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "seen"),
		asm.LoadMapPtr(asm.R1, m.seen.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotRead),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}
	return append(append(ins, m.tellSoonGone(slotPid, soonGoneSize)...), asm.Mov.Imm(asm.R0, 0).WithSymbol("seen"))
}

// readSoonGone reads what may soon be gone, until the probes are closed: names of code objects that are new, and programs that begin.
func (p *probes) readSoonGone(of *python.Processes, begins func(of program, file string)) {
	p.looked = make(chan (<-chan struct{}))
	go func() {
		defer close(p.looked)
		latest := make(chan struct{}) // closed when all programs that have begun were looked at
		close(latest)
		for {
			record, err := p.soonGone.Read()
			switch {
			case errors.Is(err, ringbuf.ErrFlushed):
				p.looked <- latest
				continue
			case err != nil:
				return
			}
			b := record.RawSample
			if len(b) < soonGoneSize {
				continue
			}
			word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
			if code := word(2); code != 0 {
				of.Read(int(word(0)), code, word(1))
				continue
			}
			its := program{uint32(word(0)), word(1)}
			file, _, _ := bytes.Cut(b[soonGoneSize:], []byte{0})
			before, done := latest, make(chan struct{})
			latest = done
			go func() {
				defer close(done)
				begins(its, string(file))
				<-before
			}()
			p.begun(its)
		}
	}()
}

// look waits until all programs that have begun were looked at.
func (p *probes) look() {
	if p.looked == nil || p.soonGone.Flush() != nil {
		return
	}
	if latest := <-p.looked; latest != nil { // else the probes are closed
		<-latest
	}
}

// begun reads what a process runs that has begun a program, unless it runs another by now.
func (p *probes) begun(of program) {
	if its := birthOf(int(of.pid), p, uint32(of.number)); its != nil {
		p.births.keep(of, its)
	}
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

// runs tells the probes what a process's interpreter is like.
func (p *probes) runs(pid int, l python.Layout) error {
	id := threadID(l)
	if id == 0 {
		return fmt.Errorf("%v does not tell its threads", l)
	}
	isIndex := uint64(0)
	if l.IsIndex {
		isIndex = 1
	}
	value := [pyWords]uint64{
		l.Interpreters, l.Next, l.Threads, l.NextThread, l.Status, id, l.Frame, l.Through, l.Previous, l.Code, l.Instruction, isIndex, l.Owner, l.FirstLine, 0,
	}
	return p.maps.python.Update(uint32(pid), value, ebpf.UpdateAny)
}

// runsOther forgets a process's interpreter.
func (p *probes) runsOther(pid int) { _ = p.maps.python.Delete(uint32(pid)) }
