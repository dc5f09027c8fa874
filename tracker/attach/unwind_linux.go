//go:build amd64 || arm64

package attach

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Frame pointers skip the callers of functions that keep none. So an allocation comes with a copy
// of the registers and of the stack, which the reader unwinds by tables. Most allocations need no
// copy: the reader puts into a map the stacks for which frame pointers and tables agree.

const (
	maxCopy     = 16 << 10 // bytes of a stack
	chunk       = 1 << 10  // is read at a time: the stack may end within it
	maxBelieved = 1 << 16  // stacks in the map
	hashFactor  = 0x9e3779b97f4a7c15
	slotScratch = slotCall - 8  // the address of the thread's room
	slotDepth   = slotCall - 16 // bytes of return addresses in it
	slotHash    = slotCall - 24
)

// takeStack follows the program's frame pointers and writes the return addresses into the thread's
// room. R0 is 0 if the stack must be copied too.
func (m *bpf) takeStack() asm.Instructions {
	lookup := func(in *ebpf.Map, slot int32) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapPtr(asm.R1, in.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, slot),
			asm.FnMapLookupElem.Call(),
		}
	}
	ins := lookup(m.scratch, slotThread)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, "room"), asm.StoreImm(asm.RFP, slotKey, 0, asm.Word))
	ins = append(ins, lookup(m.blank, slotKey)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.LoadMapPtr(asm.R1, m.scratch.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
	ins = append(ins, lookup(m.scratch, slotThread)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.StoreMem(asm.RFP, slotScratch, asm.R0, asm.DWord).WithSymbol("room"),
		asm.Mov.Reg(asm.R1, regCtx),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.Mov.Imm(asm.R3, 8*maxFrames),
		asm.Mov.Imm(asm.R4, 1<<8), // the user's stack
		asm.FnGetStack.Call(),
		asm.StoreMem(asm.RFP, slotDepth, asm.R0, asm.DWord),
	)
	ins = append(ins, hash()...)
	return append(ins, lookup(m.believed, slotHash)...)
}

// hash makes a number of the process and the R0 bytes of return addresses.
func hash() asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.LoadImm(asm.R5, -(1<<64 - hashFactor), asm.DWord),
	}
	for i := range int32(maxFrames) {
		ins = append(ins,
			asm.JSLT.Imm(asm.R0, 8*(i+1), "hashed"),
			asm.LoadMem(asm.R4, asm.R2, int16(8*i), asm.DWord),
			asm.Xor.Reg(asm.R1, asm.R4),
			asm.Mul.Reg(asm.R1, asm.R5),
		)
	}
	return append(ins, asm.StoreMem(asm.RFP, slotHash, asm.R1, asm.DWord).WithSymbol("hashed"))
}

// stacked writes the event of an allocation, with a copy of the stack if that is needed, and with the frames of Python if the
// process runs it.
func (m *bpf) stacked(index int, f function) asm.Instructions {
	ins := append(m.findLayout(), m.takeStack()...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "copy"),
		asm.LoadMem(asm.R1, asm.RFP, slotLayout, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "believed"),
	)
	ins = append(ins, m.withStack(wholeSize, index, f)...)
	ins = append(ins, submit(false)...)
	ins = append(ins, asm.Ja.Label("done"))

	believed := m.withStack(offHash, index, f)
	believed[0] = believed[0].WithSymbol("believed")
	ins = append(ins, believed...)
	ins = append(ins, asm.Ja.Label("python"))

	copied := append(m.withStack(offCopy+maxCopy, index, f), copyStack()...)
	copied[0] = copied[0].WithSymbol("copy")
	ins = append(ins, copied...)
	return append(append(ins, m.takePython()...), submit(false)...)
}

// withStack reserves an event and writes what all allocations have.
func (m *bpf) withStack(size int32, index int, f function) asm.Instructions {
	ins := append(m.reserve(size, index, atReturn), returned(f)...)
	return append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotDepth, asm.DWord),
		asm.StoreMem(regEvent, offDepth, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Add.Imm(asm.R1, offStack),
		asm.Mov.Imm(asm.R2, 8*maxFrames),
		asm.LoadMem(asm.R3, asm.RFP, slotScratch, asm.DWord),
		asm.FnProbeReadKernel.Call(),
	)
}

// copyStack copies the registers, and the stack from its pointer on.
func copyStack() asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, slotHash, asm.DWord),
		asm.StoreMem(regEvent, offHash, asm.R1, asm.DWord),
	}
	for i := range maxSaved {
		if i < len(savedRegs) {
			ins = append(ins,
				asm.LoadMem(asm.R1, regCtx, savedRegs[i].offset, asm.DWord),
				asm.StoreMem(regEvent, offSaved+8*int16(i), asm.R1, asm.DWord),
			)
		} else {
			ins = append(ins, store(regEvent, offSaved+8*int16(i), 0)...)
		}
	}
	ins = append(ins, store(regEvent, offCopied, 0)...)
	for at := int32(0); at < maxCopy; at += chunk {
		ins = append(ins,
			asm.Mov.Reg(asm.R1, regEvent),
			asm.Add.Imm(asm.R1, offCopy+at),
			asm.Mov.Imm(asm.R2, chunk),
			asm.LoadMem(asm.R3, regCtx, stackReg, asm.DWord),
			asm.Add.Imm(asm.R3, at),
			asm.FnProbeReadUser.Call(),
			asm.JNE.Imm(asm.R0, 0, "copied"),
		)
		ins = append(ins, store(regEvent, offCopied, at+chunk)...)
	}
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("copied"))
}

// believe says that the stack with this hash, found by frame pointers, is complete: from now on it
// is sent without a copy of the stack's memory.
func (p *probes) believe(hash uint64) {
	_ = p.maps.believed.Put(hash, uint32(1)) // without it, the stack is copied again
}
