//go:build amd64 || arm64

package attach

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// entry is the program at the beginning of a function. A call within a call that is
// watched is the library's own business, and is ignored, unless it takes memory back; a call that never
// returned (a thread may jump out of it) is known by its stack pointer, which is not above this one's.
func (m *bpf) entry(index int, f function) asm.Instructions {
	effect := f.effect
	ins := m.begin()
	ins = append(ins, lookUpCall(m.callsOf(f))...)
	ins = append(ins,
		asm.LoadMem(asm.R2, regCtx, stackReg, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, "outer"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
	)
	if effect != takesBack {
		ins = append(ins, asm.JGT.Reg(asm.R1, asm.R2, "end"))
	}
	ins = append(ins,
		asm.StoreMem(asm.RFP, slotCall, asm.R2, asm.DWord).WithSymbol("outer"),
	)
	ins = append(ins, store(asm.RFP, slotCall+8, int32(index))...)
	for i, reg := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, regCtx, reg, asm.DWord),
			asm.StoreMem(asm.RFP, slotCall+16+8*int16(i), asm.R1, asm.DWord),
		)
	}
	if !effect.entryOnly() {
		ins = append(ins,
			asm.LoadMapPtr(asm.R1, m.callsOf(f).FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, slotThread),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, slotCall),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
		)
	}
	if effect.atEntry() || effect.entryOnly() {
		ins = append(ins, m.reserve(shortSize, index, atEntry)...)
		ins = append(ins, zero(offResult, offArgs)...)
		for i := range argumentRegs {
			ins = append(ins,
				asm.LoadMem(asm.R1, asm.RFP, slotCall+16+8*int16(i), asm.DWord),
				asm.StoreMem(regEvent, offArgs+8*int16(i), asm.R1, asm.DWord),
			)
		}
		ins = append(ins, zero(offDesc, shortSize)...)
		ins = append(ins, submit(false)...)
		return append(ins, m.finish()...)
	}
	if effect.stacked() {
		ins = append(ins, m.pythonAtEntry()...)
	}
	return append(ins, end()...)
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
	wake := f.effect == makesContext || f.effect == retainsPrimary
	if f.effect.stacked() {
		ins = append(ins, m.stacked(index, f)...)
	} else {
		ins = append(ins, m.reserve(shortSize, index, atReturn)...)
		ins = append(ins, returned(f)...)
		ins = append(ins, submit(wake)...)
	}
	ins = append(ins,
		asm.LoadMapPtr(asm.R1, m.callsOf(f).FD()).WithSymbol("done"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.FnMapDeleteElem.Call(),
	)
	return append(ins, m.finish()...)
}

// returning ends the program unless the thread's call is one of this function, and this is its
// return: the stack pointer is where it was at the call.
func (m *bpf) returning(index int, f function) asm.Instructions {
	return append(lookUpCall(m.callsOf(f)),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(regCall, asm.R0),
		asm.LoadMem(asm.R1, regCall, 8, asm.DWord),
		asm.JNE.Imm(asm.R1, int32(index), "end"),
		asm.LoadMem(asm.R1, regCall, 0, asm.DWord),
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
			asm.LoadMem(asm.R1, regCall, 16+8*int16(i), asm.DWord),
			asm.StoreMem(regEvent, offArgs+8*int16(i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins, zero(offOut, offArgs)...)
	ins = append(ins, zero(offDesc, shortSize)...)
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
		asm.LoadMem(asm.R3, regCall, 16+8*argument, asm.DWord),
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

// lookUpCall puts the address of the thread's call in R0, or 0.
func lookUpCall(calls *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, calls.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.FnMapLookupElem.Call(),
	}
}
