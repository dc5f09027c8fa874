//go:build amd64 || arm64

package attach

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// The callers of a function are found in the kernel, while the thread is held: by what the reader has read for each return address in
// the tables of the file that it lies in, and has put into a map. If an address is not in the map, the event has a copy of the stack
// from there on, and the reader follows the rest itself, and puts what it finds into the map. So a function needs a copy once, and no
// stack does that has known functions only.
//
// One program follows the stack for all functions. It works in the thread's room, and ends by the program that writes the event.

const (
	maxApart = 1 << 29 // a caller's frame that is lower, by less than this, is wrong: goroutine and thread stacks are further apart
)

// Room on the stack of the program that follows.
const (
	slotStep  = -32 // process, generation and return address: the key of a step
	slotAddr  = slotStep + 8
	slotRule  = slotStep - 40 // a copy of the step
	slotFP    = slotRule - 8
	slotBegin = slotFP - 8 // where the caller's frame ends, and the callee's begins
	slotCount = slotBegin - 8
	slotFar   = slotCount - 8 // an unknown function has been passed
	slotWhat  = slotFar - 8
)

// Fields of a step: see unwind.Step.
const (
	stepBegin  = slotRule
	stepOffset = slotRule + 8
	stepReturn = slotRule + 16
	stepSaved  = slotRule + 24
	stepAt     = slotRule + 32
)

// roomIn puts the address of what the map has for the thread into R0, and jumps to "room". Without an
// entry it makes one, a copy of the blank one. It jumps to the label full if there is no room.
func roomIn(rooms, blank *ebpf.Map, full string) asm.Instructions {
	ins := append(lookUp(rooms, slotThread), asm.JNE.Imm(asm.R0, 0, "room"), asm.StoreImm(asm.RFP, slotKey, 0, asm.Word))
	ins = append(ins, lookUp(blank, slotKey)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, full),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.LoadMapPtr(asm.R1, rooms.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
	ins = append(ins, lookUp(rooms, slotThread)...)
	return append(ins, asm.JEq.Imm(asm.R0, 0, full))
}

// toStack jumps to the program that follows the stack from an address, and then from the caller's.
// It jumps to "lost" if there is no room.
func (m *bpf) toStack(index int, pc asm.Instructions) asm.Instructions {
	ins := append(roomIn(m.rooms, m.blank, "lost"),
		asm.Mov.Imm(asm.R1, int32(followers+index)).WithSymbol("room"),
		asm.StoreMem(asm.R0, roomNext, asm.R1, asm.DWord),
	)
	ins = append(ins, pc...)
	ins = append(ins, asm.StoreMem(asm.R0, roomPC, asm.R1, asm.DWord))
	return append(ins, m.goOn(asm.Mov.Imm(asm.R3, followStack))...)
}

// followStack returns the program that follows the thread's stack. At an unknown function it
// continues with frame pointers: they may be wrong, but may be all that is known beyond the copied
// part.
func (m *bpf) followStack() asm.Instructions {
	const sp, room = regCall, regEvent
	ins := m.begin()
	ins = append(ins, asm.LoadMem(asm.R1, asm.R0, 0, asm.Word), asm.StoreMem(asm.RFP, slotStep+4, asm.R1, asm.Word))
	ins = append(ins, lookUp(m.rooms, slotThread)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(room, asm.R0),
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotStep, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, room, roomPC, asm.DWord),
		asm.StoreMem(asm.RFP, slotAddr, asm.R1, asm.DWord),
		asm.LoadMem(sp, regCtx, stackReg, asm.DWord),
		asm.LoadMem(asm.R1, regCtx, frameReg, asm.DWord),
		asm.StoreMem(asm.RFP, slotFP, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(asm.RFP, slotCount, 0)...), store(asm.RFP, slotFar, 0)...)
	ins = append(ins, store(room, roomWindowAt, 0)...)

	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("next"),
		asm.And.Imm(asm.R1, maxFrames-1),
		asm.LSh.Imm(asm.R1, 3),
		asm.Mov.Reg(asm.R2, room),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, asm.RFP, slotAddr, asm.DWord),
		asm.StoreMem(asm.R2, roomFrames, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotFar, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "framed"),
	)
	ins = append(ins, lookUp(m.steps, slotStep)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "unknown"))
	for at := int16(0); at < 40; at += 8 {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R0, at, asm.DWord), asm.StoreMem(asm.RFP, slotRule+at, asm.R1, asm.DWord))
	}
	ins = append(ins, asm.Ja.Label("step"))

	ins = append(ins, m.noteUnknown(sp, room)...)
	framed := machine.Framed()
	for i, n := range []int64{int64(framed.Begin), framed.Offset, framed.Return, int64(framed.Saved), framed.At} {
		ins = append(ins, store(asm.RFP, slotRule+8*int16(i), int32(n))...)
	}
	ins = append(ins, m.stepOut(sp, room)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R1, 0, "outermost").WithSymbol("returned"),
		asm.LoadMem(sp, asm.RFP, slotBegin, asm.DWord),
	)
	ins = append(ins, again(slotCount, "next", maxFrames)...)
	ins = append(ins, noteEnd(room)...)
	ins = append(ins, m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "native"))
	ins = append(ins, m.goOn(asm.Mov.Imm(asm.R3, followPython))...)
	ins = append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("native"))
	ins = append(ins, m.goOn(asm.LoadMem(asm.R3, room, roomNext, asm.DWord))...)
	return append(ins, end()...)
}

// noteUnknown notes where the frames end that are certain. It begins at the label "unknown", and ends at "framed", where frame pointers are
// followed.
func (m *bpf) noteUnknown(sp, room asm.Register) asm.Instructions {
	ins := store(asm.RFP, slotFar, 1)
	ins[0] = ins[0].WithSymbol("unknown")
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(room, roomDepth+inDepth, asm.R1, asm.Byte),
		asm.Mov.Imm(asm.R1, int32(isUnknown)),
		asm.StoreMem(room, roomDepth+inEnd, asm.R1, asm.Byte),
		asm.StoreMem(room, roomSP, sp, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotFP, asm.DWord),
		asm.StoreMem(room, roomFP, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(room, roomKept, 0)...), store(room, roomKeptAt, 0)...)
	ins = append(append(ins, lookUp(m.others, slotThread)...), asm.JEq.Imm(asm.R0, 0, "framed"))
	ins = append(ins, kept()...)
	ins = append(ins,
		asm.StoreMem(room, roomKept, asm.R1, asm.DWord),
		asm.StoreMem(room, roomKeptAt, asm.R2, asm.DWord),
	)
	return append(ins, asm.Mov.Imm(asm.R1, 0).WithSymbol("framed"))
}

// noteEnd notes how many frames there are and how they end. It begins where there are more than there is room for.
func noteEnd(room asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(isMore)),
		asm.Ja.Label("full"),
		asm.Mov.Imm(asm.R2, int32(lost)).WithSymbol("nowhere"),
		asm.Ja.Label("ended"),
		asm.Mov.Imm(asm.R2, int32(whole)).WithSymbol("outermost"),
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("ended"),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, slotCount, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("full"),
		asm.StoreMem(room, roomDepth+inTotal, asm.R1, asm.Byte),
		asm.StoreMem(room, roomDepth+inBeyond, asm.R2, asm.Byte),
		asm.LoadMem(asm.R3, asm.RFP, slotFar, asm.DWord),
		asm.JNE.Imm(asm.R3, 0, "followed"),
		asm.StoreMem(room, roomDepth+inDepth, asm.R1, asm.Byte),
		asm.StoreMem(room, roomDepth+inEnd, asm.R2, asm.Byte),
		asm.LoadMem(asm.R1, asm.RFP, slotStep+4, asm.Word).WithSymbol("followed"),
		asm.StoreMem(room, roomDepth+4, asm.R1, asm.Word),
	}
}

// readStack copies the word at the address in R3 to the program's stack, or jumps to "nowhere". Most words are in the window: reading
// each by itself would cost as much as all the rest.
func readStack(room asm.Register, to int16) asm.Instructions {
	label := func(name string) string { return fmt.Sprint(name, to) }
	fill := func(size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, room),
			asm.Add.Imm(asm.R1, roomWindow),
			asm.Mov.Imm(asm.R2, size),
			asm.FnProbeReadUser.Call(),
		}
	}
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, room, roomWindowAt, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R3),
		asm.Sub.Reg(asm.R2, asm.R1),
		asm.JLE.Imm(asm.R2, window-8, label("in the window")),
		asm.StoreMem(room, roomWindowAt, asm.R3, asm.DWord),
	}
	ins = append(ins, fill(window)...)
	ins = append(ins,
		asm.Mov.Imm(asm.R2, 0),
		asm.JEq.Imm(asm.R0, 0, label("in the window")),
		asm.LoadMem(asm.R3, room, roomWindowAt, asm.DWord), // the stack may end there
	)
	ins = append(append(ins, store(room, roomWindowAt, 0)...), fill(8)...)
	return append(ins,
		asm.JNE.Imm(asm.R0, 0, "nowhere"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R1, room).WithSymbol(label("in the window")),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R1, asm.R1, roomWindow, asm.DWord),
		asm.StoreMem(asm.RFP, to, asm.R1, asm.DWord),
	)
}

// kept puts the return address of the call at R0 into R1, and into R2 the stack pointer after its return.
func kept() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R0, callReturn, asm.DWord),
		asm.LoadMem(asm.R2, asm.R0, callStack, asm.DWord),
		asm.Add.Imm(asm.R2, popsReturn),
	}
}

// stepOut goes from a frame to its caller, by the step on the program's stack at the label "step".
// It puts the return address into R1 and its slot, and the place of the caller's frame into
// slotBegin. Without a caller it jumps to "outermost" or "nowhere".
func (m *bpf) stepOut(sp, room asm.Register) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, stepBegin, asm.DWord).WithSymbol("step"),
		asm.JEq.Imm(asm.R2, int32(unwind.Nowhere), "outermost"),
		asm.JNE.Imm(asm.R2, int32(unwind.Kept), "stepOut"),
	}
	ins = append(append(ins, lookUp(m.others, slotThread)...), asm.JEq.Imm(asm.R0, 0, "nowhere"))
	ins = append(ins, kept()...)
	ins = append(ins,
		asm.JNE.Reg(asm.R2, sp, "nowhere"),
		asm.StoreMem(asm.RFP, slotBegin, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, slotAddr, asm.R1, asm.DWord),
		asm.Ja.Label("returned"),
		asm.LoadMem(asm.R2, asm.RFP, stepBegin, asm.DWord).WithSymbol("stepOut"),
	)
	ins = append(ins, plus(asm.Mov.Reg(asm.R3, sp), stepOffset)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, int32(unwind.Stack), "begins"))
	ins = append(ins, plus(asm.LoadMem(asm.R3, asm.RFP, slotFP, asm.DWord), stepOffset)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, int32(unwind.Frame), "begins"))
	ins = append(ins, readStack(room, slotWhat)...)
	ins = append(ins,
		asm.LoadMem(asm.R3, asm.RFP, slotWhat, asm.DWord),
		asm.StoreMem(asm.RFP, slotBegin, asm.R3, asm.DWord).WithSymbol("begins"),
		asm.Mov.Reg(asm.R1, sp),
		asm.Sub.Reg(asm.R1, asm.R3),
		asm.JLT.Imm(asm.R1, maxApart, "nowhere"),
	)
	return append(ins, readCaller(room)...)
}

// plus puts into R3 what base puts there and the offset of the step.
func plus(base asm.Instruction, offset int16) asm.Instructions {
	return asm.Instructions{base, asm.LoadMem(asm.R1, asm.RFP, offset, asm.DWord), asm.Add.Reg(asm.R3, asm.R1)}
}

// readCaller reads, for the frame at slotBegin, the caller's frame pointer if the step says where it
// is, and the return address.
func readCaller(room asm.Register) asm.Instructions {
	read := func(from asm.Instructions, to int16) asm.Instructions { return append(from, readStack(room, to)...) }
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, stepSaved, asm.DWord),
		asm.JEq.Imm(asm.R2, int32(unwind.Nowhere), "pointer"),
		asm.JEq.Imm(asm.R2, int32(unwind.Stack), "kept"),
		asm.LoadMem(asm.R3, asm.RFP, slotFP, asm.DWord),
	}
	kept := plus(asm.Mov.Reg(asm.R3, asm.R3), stepAt)
	kept[0] = kept[0].WithSymbol("kept")
	ins = append(ins, read(kept, slotFP)...)
	back := plus(asm.LoadMem(asm.R3, asm.RFP, slotBegin, asm.DWord), stepReturn)
	back[0] = back[0].WithSymbol("pointer")
	ins = append(ins, read(back, slotAddr)...)
	ins = append(ins, asm.LoadMem(asm.R1, asm.RFP, slotAddr, asm.DWord))
	if signed := ^machine.Address(); signed != 0 {
		ins = append(ins,
			asm.LoadImm(asm.R2, int64(machine.Address()), asm.DWord),
			asm.And.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.RFP, slotAddr, asm.R1, asm.DWord),
		)
	}
	return ins
}

// copyStack gives the reader the stack from the frame of an unknown function on, in parts, up to where it begins. The fuller the ring, the
// less is copied, and nothing once it is half full: events are more than the callers of some. The label at its end is "copied".
func (m *bpf) copyStack() asm.Instructions {
	half := m.ring.MaxEntries() / 2
	ins := append(store(asm.RFP, slotWake, int32(waits)),
		asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord),
		asm.LoadMem(asm.R1, asm.R2, roomDepth+inEnd, asm.Byte),
		asm.JNE.Imm(asm.R1, int32(isUnknown), "copied"),
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Imm(asm.R2, 0), // BPF_RB_AVAIL_DATA
		asm.FnRingbufQuery.Call(),
		asm.Mov.Imm(asm.R1, int32(half)),
		asm.JGE.Reg(asm.R0, asm.R1, "no room"),
		asm.Sub.Reg(asm.R1, asm.R0),
		asm.RSh.Imm(asm.R1, int32(bits.Len32(half/maxCopy)-1)), // all, if the ring is empty
		asm.StoreMem(asm.RFP, slotRead, asm.R1, asm.DWord),
	)
	ins = append(ins, m.stackSize()...)
	ins = append(ins, store(asm.RFP, slotWake, int32(wakes))...) // the sooner it is read, the fewer need a copy
	ins = append(ins, store(asm.RFP, slotIndex, 0)...)
	ins = append(ins, m.copyPart()...)
	return append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, slotIndex, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, maxCopy/chunk, "copied"),
		asm.LSh.Imm(asm.R1, chunkBits),
		asm.LoadMem(asm.R2, asm.RFP, slotRead, asm.DWord),
		asm.JLT.Reg(asm.R1, asm.R2, "next part"),
		asm.Ja.Label("copied"),
		asm.Mov.Imm(asm.R2, int32(waits)).WithSymbol("none there"),
		asm.FnRingbufDiscard.Call(),
		asm.Ja.Label("copied"),
		asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord).WithSymbol("no room"),
		asm.Mov.Imm(asm.R1, int32(isLeftOut)),
		asm.StoreMem(asm.R2, roomDepth+inEnd, asm.R1, asm.Byte),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("copied"),
	)
}

// copyPart gives the reader the part of the stack with the number in a slot. It begins at the label "next part". If the stack ends within
// the part it jumps to "none there", and has the part's address in R1.
func (m *bpf) copyPart() asm.Instructions {
	const part = regEvent
	ins := asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ring.FD()).WithSymbol("next part"),
		asm.Mov.Imm(asm.R2, partSize),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "no room"),
		asm.Mov.Reg(part, asm.R0),
		asm.StoreMem(part, offThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(copies)<<32, asm.DWord),
		asm.StoreMem(part, offWhat, asm.R1, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord),
	}
	for i, from := range []int16{roomSP, roomFP, roomKept, roomKeptAt} {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R2, from, asm.DWord), asm.StoreMem(part, offUnknown+8*int16(i), asm.R1, asm.DWord))
	}
	return append(ins,
		asm.LoadMem(asm.R3, asm.R2, roomSP, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.LSh.Imm(asm.R1, chunkBits),
		asm.StoreMem(part, offUnknown+32, asm.R1, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R1),
		asm.Mov.Reg(asm.R1, part),
		asm.Add.Imm(asm.R1, offPart),
		asm.Mov.Imm(asm.R2, chunk),
		asm.FnProbeReadUser.Call(),
		asm.Mov.Reg(asm.R1, part),
		asm.JNE.Imm(asm.R0, 0, "none there"),
		asm.Mov.Imm(asm.R2, int32(waits)),
		asm.FnRingbufSubmit.Call(),
	)
}

// stackSize lowers the size in slotRead to what there is of the stack: up to what the kernel put behind the stack of the process's first
// thread, or to the thread's own block of memory, which lies behind its stack where the C library made that.
func (m *bpf) stackSize() asm.Instructions {
	upTo := func(label string) asm.Instructions { // of an address in R0
		return asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, slotRoom, asm.DWord),
			asm.LoadMem(asm.R1, asm.R2, roomSP, asm.DWord),
			asm.Sub.Reg(asm.R0, asm.R1),
			asm.LoadMem(asm.R1, asm.RFP, slotRead, asm.DWord),
			asm.JGE.Reg(asm.R0, asm.R1, label),
			asm.StoreMem(asm.RFP, slotRead, asm.R0, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol(label),
		}
	}
	ins := asm.Instructions{asm.FnGetCurrentTask.Call(), asm.Mov.Reg(asm.R3, asm.R0)}
	ins = append(ins, readKernel(m.memory, 8)...)
	ins = append(ins, asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord))
	ins = append(ins, readKernel(m.startStack, 8)...)
	ins = append(ins, asm.LoadMem(asm.R0, asm.RFP, slotWord, asm.DWord))
	ins = append(ins, upTo("not the first")...)
	if threadBase != "" {
		ins = append(append(ins, m.self()...), upTo("no block")...)
	}
	return ins
}

// stepKey is the key of a step in the map.
type stepKey struct {
	PID, Generation uint32
	PC              uint64
}
