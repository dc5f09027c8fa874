//go:build amd64 || arm64

package attach

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// entry is the program at the beginning of a function. A call within a call that is
// watched is the library's own business, and is ignored, unless it takes memory back; a call that never
// returned (a thread may jump out of it) is known by its stack pointer, which is not above this one's.
func (m *bpf) entry(index int, f function) asm.Instructions {
	effect := f.effect
	ins := m.begin()
	ins = append(ins, lookUp(m.callsOf(f), slotThread)...)
	ins = append(ins,
		asm.LoadMem(asm.R2, regCtx, stackReg, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, "outer"),
		asm.LoadMem(asm.R1, asm.R0, callStack, asm.DWord),
	)
	if effect != takesBack {
		ins = append(ins, asm.JGT.Reg(asm.R1, asm.R2, "end"))
	}
	ins = append(ins,
		asm.StoreMem(asm.RFP, slotCall+callStack, asm.R2, asm.DWord).WithSymbol("outer"),
	)
	ins = append(ins, store(asm.RFP, slotCall+callFunction, int32(index))...)
	for i, reg := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, regCtx, reg, asm.DWord),
			asm.StoreMem(asm.RFP, slotCall+callArguments+8*int16(i), asm.R1, asm.DWord),
		)
	}
	if !effect.entryOnly() {
		ins = append(append(ins, keepReturn(f)...), keepCall(m.callsOf(f))...)
	}
	if effect.atEntry() || effect.entryOnly() {
		return append(ins, m.tellCall(index)...)
	}
	return append(ins, end()...)
}

// keepReturn keeps the return address of a library's function: the kernel puts that of a trampoline in its place, so that the probe at its
// return runs, and a call of the driver in the function would not know its callers.
func keepReturn(f function) asm.Instructions {
	ins := store(asm.RFP, slotCall+callReturn, 0)
	switch {
	case f.library == "":
	case linkReg >= 0:
		ins = append(ins, asm.LoadMem(asm.R1, regCtx, linkReg, asm.DWord), asm.StoreMem(asm.RFP, slotCall+callReturn, asm.R1, asm.DWord))
	default:
		ins = append(ins,
			asm.Mov.Reg(asm.R1, asm.RFP),
			asm.Add.Imm(asm.R1, slotCall+callReturn),
			asm.Mov.Imm(asm.R2, 8),
			asm.LoadMem(asm.R3, regCtx, stackReg, asm.DWord),
			asm.FnProbeReadUser.Call(),
		)
	}
	return ins
}

// keepCall puts the call on the program's stack into the map with the threads' calls.
func keepCall(calls *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, calls.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotCall),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}
}

// tellCall writes an event of the call on the program's stack, and ends the program.
func (m *bpf) tellCall(index int) asm.Instructions {
	ins := append(m.reserve(shortSize, index, atEntry), zero(offResult, offArgs)...)
	for i := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, asm.RFP, slotCall+callArguments+8*int16(i), asm.DWord),
			asm.StoreMem(regEvent, offArgs+8*int16(i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins, submit(waits)...)
	return append(ins, m.finish()...)
}

// A static probe is not at a function: its note says where its arguments are, and it has no return.
// Its program stores them like a call's arguments and, for an allocation, continues as at the
// call's return.

// atNote is the program at a place of a static probe.
func (m *bpf) atNote(index int, f function, its []symbols.NoteArgument) (asm.Instructions, error) {
	ins := append(m.begin(),
		asm.LoadMem(asm.R1, regCtx, stackReg, asm.DWord),
		asm.StoreMem(asm.RFP, slotCall+callStack, asm.R1, asm.DWord),
	)
	ins = append(ins, store(asm.RFP, slotCall+callFunction, int32(index))...)
	for i := range argumentRegs {
		value := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
		if i < len(its) {
			var err error
			if value, err = readNoted(its[i]); err != nil {
				return nil, err
			}
		}
		ins = append(append(ins, value...), asm.StoreMem(asm.RFP, slotCall+callArguments+8*int16(i), asm.R1, asm.DWord))
	}
	if !f.effect.stacked() {
		return append(ins, m.tellCall(index)...), nil
	}
	ins = append(ins, store(asm.RFP, slotCall+callReturn, 0)...)
	ins = append(ins, keepCall(m.callsOf(f))...)
	ins = append(ins, m.toStack(index, asm.Instructions{
		asm.LoadMem(asm.R1, regCtx, nextReg, asm.DWord),
		asm.Add.Imm(asm.R1, 1), // tables are asked for the place before an address, as that is a return's
	})...)
	return append(ins, m.finish()...), nil
}

// readNoted puts the value of an argument into R1.
func readNoted(a symbols.NoteArgument) (ins asm.Instructions, err error) {
	if a.Register == "" {
		return asm.Instructions{asm.Mov.Imm(asm.R1, a.Offset)}, nil
	}
	reg, ok := noteRegs[a.Register]
	if !ok {
		return nil, fmt.Errorf("an argument of a static probe is in the register %s, which is not known", a.Register)
	}
	if !a.Memory {
		ins = asm.Instructions{asm.LoadMem(asm.R1, regCtx, reg, asm.DWord)}
	} else {
		ins = append(store(asm.RFP, slotWord, 0),
			asm.LoadMem(asm.R3, regCtx, reg, asm.DWord),
			asm.Add.Imm(asm.R3, a.Offset),
			asm.Mov.Reg(asm.R1, asm.RFP),
			asm.Add.Imm(asm.R1, slotWord),
			asm.Mov.Imm(asm.R2, int32(a.Bytes)),
			asm.FnProbeReadUser.Call(),
			asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		)
	}
	unused := int32(64 - 8*a.Bytes)
	if unused == 0 {
		return ins, nil
	}
	widen := asm.RSh
	if a.Signed {
		widen = asm.ArSh
	}
	return append(ins, asm.LSh.Imm(asm.R1, unused), widen.Imm(asm.R1, unused)), nil
}

// forgetCall is the last part of a program at the end of a call: it begins at the label "done".
func (m *bpf) forgetCall(f function) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.callsOf(f).FD()).WithSymbol("done"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.FnMapDeleteElem.Call(),
	}
	return append(ins, m.finish()...)
}

// Programs that others end by, in their map. Those that write the event of a function come behind them, by its index.
const (
	followStack  = iota // finds the callers
	followPython        // finds frames of Python
	copyCode            // copies what of these is new
	followers
)

// goOn has another program run in this one's place, if it is there. The instruction puts its number into R3.
func (m *bpf) goOn(number asm.Instruction) asm.Instructions {
	return asm.Instructions{
		number,
		asm.Mov.Reg(asm.R1, regCtx),
		asm.LoadMapPtr(asm.R2, m.follow.FD()),
		asm.FnTailCall.Call(),
	}
}

// leave is the program at the end of a function.
func (m *bpf) leave(index int, f function) asm.Instructions {
	ins := m.begin()
	ins = append(ins, m.returning(index, f)...)
	if f.effect.atEntry() { // only a failure is news
		ins = append(ins,
			asm.LoadMem(asm.R1, regCtx, resultReg, asm.Word),
			asm.JEq.Imm(asm.R1, 0, "done"),
		)
	}
	wake := waits
	if f.effect == makesContext || f.effect == retainsPrimary {
		wake = wakes
	}
	if f.effect.stacked() {
		ins = append(ins, m.toStack(index, asm.Instructions{asm.LoadMem(asm.R1, regCtx, nextReg, asm.DWord)})...)
		return append(ins, m.finish()...)
	}
	ins = append(ins, m.reserve(shortSize, index, atReturn)...)
	ins = append(ins, returned(f)...)
	ins = append(ins, submit(wake)...)
	return append(ins, m.forgetCall(f)...)
}

// stacked is the program that writes the event of an allocation when its stack has been followed: after a copy of the stack if that is
// needed, and with the frames of Python if the process runs it. It makes the event in the thread's room, or in that for frames of Python.
func (m *bpf) stacked(index int, f function) asm.Instructions {
	ins := append(m.begin(), lookUp(m.callsOf(f), slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(regCall, asm.R0))
	ins = append(ins, lookUp(m.rooms, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "lost"), asm.StoreMem(asm.RFP, slotRoom, asm.R0, asm.DWord))
	ins = append(append(ins, m.findLayout()...), m.copyStack()...)
	ins = append(ins, asm.LoadMem(asm.R0, asm.RFP, slotLayout, asm.DWord), asm.JEq.Imm(asm.R0, 0, "native"))

	ins = append(ins, lookUp(m.running, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "native"), asm.Mov.Reg(regEvent, asm.R0))
	ins = append(append(ins, describe(index, f)...), joinFrames()...)
	ins = append(ins, m.output()...)
	ins = append(ins, asm.Mov.Imm(asm.R4, 0), asm.StoreMem(regEvent, offPython, asm.R4, asm.DWord), asm.Ja.Label("done")) // the next call may find none

	ins = append(ins,
		asm.LoadMem(regEvent, asm.RFP, slotRoom, asm.DWord).WithSymbol("native"),
		asm.Add.Imm(regEvent, roomEvent),
	)
	ins = append(append(ins, describe(index, f)...), sizeOfFrames(asm.R3)...)
	ins = append(ins, asm.Add.Imm(asm.R3, offFrames))
	ins = append(ins, m.output()...)
	return append(ins, m.forgetCall(f)...)
}

// describe writes what all events of calls have.
func describe(index int, f function) asm.Instructions {
	ins := asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regEvent, offTime, asm.R0, asm.DWord),
		asm.StoreMem(regEvent, offThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(atReturn)<<32|int64(index), asm.DWord),
		asm.StoreMem(regEvent, offWhat, asm.R1, asm.DWord),
	}
	ins = append(ins, returned(f)...)
	return append(ins,
		asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord),
		asm.LoadMem(asm.R1, asm.R2, roomDepth, asm.DWord),
		asm.StoreMem(regEvent, offDepth, asm.R1, asm.DWord),
	)
}

// sizeOfFrames puts the size of the stack's addresses into a register.
func sizeOfFrames(to asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord),
		asm.LoadMem(to, asm.R2, roomDepth+inTotal, asm.Byte),
		asm.JGT.Imm(to, maxFrames, "lost"),
		asm.LSh.Imm(to, 3),
	}
}

// joinFrames puts the stack's addresses behind the frames of Python, and the event's size into R3.
func joinFrames() asm.Instructions {
	const size = regCall // the call is described
	ins := append(sizeOfFrames(size),
		asm.LoadMem(asm.R1, regEvent, offPython, asm.DWord),
		asm.JGT.Imm(asm.R1, maxPython, "lost"),
		asm.LSh.Imm(asm.R1, 4),
		asm.Add.Imm(asm.R1, offFrames),
		asm.StoreMem(asm.RFP, slotWord, asm.R1, asm.DWord),
		asm.Add.Reg(asm.R1, regEvent),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.Add.Imm(asm.R3, roomFrames),
		asm.Mov.Reg(asm.R2, size),
		asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord),
	)
	return append(ins, asm.Add.Reg(asm.R3, size))
}

// output gives the event, whose size is in R3, to the reader, and wakes it if it is to teach.
func (m *bpf) output() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R4, asm.RFP, slotWake, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Reg(asm.R2, regEvent),
		asm.FnRingbufOutput.Call(),
		asm.JNE.Imm(asm.R0, 0, "lost"),
	}
}

// returning ends the program unless the thread's call is one of this function, and this is its
// return: the stack pointer is where it was at the call.
func (m *bpf) returning(index int, f function) asm.Instructions {
	return append(lookUp(m.callsOf(f), slotThread),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(regCall, asm.R0),
		asm.LoadMem(asm.R1, regCall, callFunction, asm.DWord),
		asm.JNE.Imm(asm.R1, int32(index), "end"),
		asm.LoadMem(asm.R1, regCall, callStack, asm.DWord),
		asm.Add.Imm(asm.R1, popsReturn),
		asm.LoadMem(asm.R2, regCtx, stackReg, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "end"),
	)
}

// returned writes the result of a call, its arguments and what it wrote where they point.
func returned(f function) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, regCtx, resultReg, asm.DWord),
		asm.StoreMem(regEvent, offResult, asm.R1, asm.DWord),
	}
	for i := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, regCall, callArguments+8*int16(i), asm.DWord),
			asm.StoreMem(regEvent, offArgs+8*int16(i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins, zero(offOut, offArgs)...)
	if f.effect.stacked() {
		ins = append(ins, zero(offDesc, offDepth)...)
	}
	if f.gives() {
		ins = append(ins, readUser(offOut, 8, int16(f.address))...)
	}
	if f.effect == allocatesPitched {
		ins = append(ins, readUser(offPitch, 8, 1)...)
	}
	if f.effect.described() {
		ins = append(ins, readUser(offDesc, offDepth-offDesc, 1)...)
	}
	return ins
}

// readUser copies what an argument points to.
func readUser(to int16, size int32, argument int16) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Add.Imm(asm.R1, int32(to)),
		asm.Mov.Imm(asm.R2, size),
		asm.LoadMem(asm.R3, regCall, callArguments+8*argument, asm.DWord),
		asm.FnProbeReadUser.Call(),
	}
}

// callsOf returns the map with the calls of a function's library.
func (m *bpf) callsOf(f function) *ebpf.Map {
	if f.library != "" {
		return m.others
	}
	return m.calls
}
