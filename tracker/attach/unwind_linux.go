//go:build amd64 || arm64

package attach

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// Stacks are unwound in the kernel, while the thread is stopped, by rules that the reader has loaded for
// each return address from the tables of its file. If a rule is missing, the event gets a copy of the
// stack from there on. The reader unwinds that, and loads the rules. So each address needs a copy once,
// and a stack with known addresses only needs none.
//
// One program unwinds for all functions. It works in the thread's scratch buffer, and ends by a tail
// call of the program that writes the event.

const (
	maxApart = 1 << 29 // a caller's frame that is lower by less than this is wrong: the stacks of threads and goroutines are further apart
)

// Stack slots of the program that unwinds.
const (
	slotRuleKey     = -32 // a ruleKey: process, generation and return address
	slotAddr        = slotRuleKey + 8
	slotRule        = slotRuleKey - 40 // a copy of the rule
	slotFP          = slotRule - 8
	slotCFA         = slotFP - 8 // the canonical frame address
	slotCount       = slotCFA - 8
	slotPastUnknown = slotCount - 8 // 1 after an address without a rule
	slotDeref       = slotPastUnknown - 8
)

// Fields of the rule: see unwind.CompactRule.
const (
	ruleBase         = slotRule
	ruleCFAOffset    = slotRule + 8
	ruleReturnOffset = slotRule + 16
	ruleFPBase       = slotRule + 24
	ruleFPOffset     = slotRule + 32
)

// lookUpScratch puts the address of the thread's scratch buffer into R0, and jumps to "scratch". It
// makes one from blank if there is none, and jumps to the label full if that fails.
func lookUpScratch(scratch, blank *ebpf.Map, full string) asm.Instructions {
	ins := append(lookUp(scratch, slotThread), asm.JNE.Imm(asm.R0, 0, "scratch"), asm.StoreImm(asm.RFP, slotKey, 0, asm.Word))
	ins = append(ins, lookUp(blank, slotKey)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, full),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.LoadMapPtr(asm.R1, scratch.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
	ins = append(ins, lookUp(scratch, slotThread)...)
	return append(ins, asm.JEq.Imm(asm.R0, 0, full))
}

// startUnwind tail calls the program that unwinds the stack from an address, which pc puts into R1. It
// jumps to "lost" if there is no scratch buffer.
func (m *bpf) startUnwind(index int, pc asm.Instructions) asm.Instructions {
	ins := append(lookUpScratch(m.scratch, m.zeroScratch, "lost"),
		asm.Mov.Imm(asm.R1, int32(tailPrograms+index)).WithSymbol("scratch"),
		asm.StoreMem(asm.R0, scratchNext, asm.R1, asm.DWord),
	)
	ins = append(ins, pc...)
	ins = append(ins, asm.StoreMem(asm.R0, scratchPC, asm.R1, asm.DWord))
	return append(ins, m.tailCall(asm.Mov.Imm(asm.R3, tailUnwind))...)
}

// unwindStack is the program that unwinds the thread's stack. After an address without a rule it
// continues by frame pointers: they may be wrong, but may be all that there is beyond the copied part.
func (m *bpf) unwindStack() asm.Instructions {
	const sp, scratch = regCall, regEvent
	ins := m.prologue()
	ins = append(ins, asm.LoadMem(asm.R1, asm.R0, 0, asm.Word), asm.StoreMem(asm.RFP, slotRuleKey+4, asm.R1, asm.Word))
	ins = append(ins, lookUp(m.scratch, slotThread)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(scratch, asm.R0),
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotRuleKey, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, scratch, scratchPC, asm.DWord),
		asm.StoreMem(asm.RFP, slotAddr, asm.R1, asm.DWord),
		asm.LoadMem(sp, regCtx, stackReg, asm.DWord),
		asm.LoadMem(asm.R1, regCtx, frameReg, asm.DWord),
		asm.StoreMem(asm.RFP, slotFP, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(asm.RFP, slotCount, 0)...), store(asm.RFP, slotPastUnknown, 0)...)
	ins = append(ins, store(scratch, scratchWindowAt, 0)...)

	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("next"),
		asm.And.Imm(asm.R1, event.MaxFrames-1),
		asm.LSh.Imm(asm.R1, 3),
		asm.Mov.Reg(asm.R2, scratch),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, asm.RFP, slotAddr, asm.DWord),
		asm.StoreMem(asm.R2, scratchFrames, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotPastUnknown, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "framed"),
	)
	ins = append(ins, lookUp(m.unwindRules, slotRuleKey)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "unknown"))
	for at := int16(0); at < 40; at += 8 {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R0, at, asm.DWord), asm.StoreMem(asm.RFP, slotRule+at, asm.R1, asm.DWord))
	}
	ins = append(ins, asm.Ja.Label("rule"))

	ins = append(ins, m.noteUnknown(sp, scratch)...)
	framed := machine.FramePointerRule()
	for i, n := range []int64{int64(framed.Base), framed.CFAOffset, framed.ReturnOffset, int64(framed.FPBase), framed.FPOffset} {
		ins = append(ins, store(asm.RFP, slotRule+8*int16(i), int32(n))...)
	}
	ins = append(ins, m.toCaller(sp, scratch)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R1, 0, "outermost").WithSymbol("returned"),
		asm.LoadMem(sp, asm.RFP, slotCFA, asm.DWord),
	)
	ins = append(ins, again(slotCount, "next", event.MaxFrames)...)
	ins = append(ins, noteEnd(scratch)...)
	ins = append(ins, m.findLayout()...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "native"))
	ins = append(ins, m.tailCall(asm.Mov.Imm(asm.R3, tailPython))...)
	ins = append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("native"))
	ins = append(ins, m.tailCall(asm.LoadMem(asm.R3, scratch, scratchNext, asm.DWord))...)
	return append(ins, end()...)
}

// noteUnknown records the state at an address without a rule. It starts at the label "unknown", and ends
// at "framed", where unwinding by frame pointers starts.
func (m *bpf) noteUnknown(sp, scratch asm.Register) asm.Instructions {
	ins := store(asm.RFP, slotPastUnknown, 1)
	ins[0] = ins[0].WithSymbol("unknown")
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(scratch, scratchDepth+event.InDepth, asm.R1, asm.Byte),
		asm.Mov.Imm(asm.R1, int32(event.UnknownFunction)),
		asm.StoreMem(scratch, scratchDepth+event.InEnd, asm.R1, asm.Byte),
		asm.StoreMem(scratch, scratchSP, sp, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotFP, asm.DWord),
		asm.StoreMem(scratch, scratchFP, asm.R1, asm.DWord),
	)
	ins = append(append(ins, store(scratch, scratchSavedReturn, 0)...), store(scratch, scratchSavedReturnSP, 0)...)
	ins = append(append(ins, lookUp(m.libraryCalls, slotThread)...), asm.JEq.Imm(asm.R0, 0, "framed"))
	ins = append(ins, loadSavedReturn()...)
	ins = append(ins,
		asm.StoreMem(scratch, scratchSavedReturn, asm.R1, asm.DWord),
		asm.StoreMem(scratch, scratchSavedReturnSP, asm.R2, asm.DWord),
	)
	return append(ins, asm.Mov.Imm(asm.R1, 0).WithSymbol("framed"))
}

// noteEnd records the number of frames and why there are no more. It starts where there are too many.
func noteEnd(scratch asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(event.Truncated)),
		asm.Ja.Label("full"),
		asm.Mov.Imm(asm.R2, int32(event.NoCaller)).WithSymbol("nowhere"),
		asm.Ja.Label("ended"),
		asm.Mov.Imm(asm.R2, int32(event.Complete)).WithSymbol("outermost"),
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("ended"),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, slotCount, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotCount, asm.DWord).WithSymbol("full"),
		asm.StoreMem(scratch, scratchDepth+event.InTotal, asm.R1, asm.Byte),
		asm.StoreMem(scratch, scratchDepth+event.InTotalEnd, asm.R2, asm.Byte),
		asm.LoadMem(asm.R3, asm.RFP, slotPastUnknown, asm.DWord),
		asm.JNE.Imm(asm.R3, 0, "followed"),
		asm.StoreMem(scratch, scratchDepth+event.InDepth, asm.R1, asm.Byte),
		asm.StoreMem(scratch, scratchDepth+event.InEnd, asm.R2, asm.Byte),
		asm.LoadMem(asm.R1, asm.RFP, slotRuleKey+4, asm.Word).WithSymbol("followed"),
		asm.StoreMem(scratch, scratchDepth+4, asm.R1, asm.Word),
	}
}

// readStack copies the word at the address in R3 to a stack slot, or jumps to "nowhere". Most words are in
// the window: reading each by itself would double the cost.
func readStack(scratch asm.Register, to int16) asm.Instructions {
	label := func(name string) string { return fmt.Sprint(name, to) }
	fill := func(size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, scratch),
			asm.Add.Imm(asm.R1, scratchWindow),
			asm.Mov.Imm(asm.R2, size),
			asm.FnProbeReadUser.Call(),
		}
	}
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, scratch, scratchWindowAt, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R3),
		asm.Sub.Reg(asm.R2, asm.R1),
		asm.JLE.Imm(asm.R2, window-8, label("in the window")),
		asm.StoreMem(scratch, scratchWindowAt, asm.R3, asm.DWord),
	}
	ins = append(ins, fill(window)...)
	ins = append(ins,
		asm.Mov.Imm(asm.R2, 0),
		asm.JEq.Imm(asm.R0, 0, label("in the window")),
		asm.LoadMem(asm.R3, scratch, scratchWindowAt, asm.DWord), // the stack may end within the window
	)
	ins = append(append(ins, store(scratch, scratchWindowAt, 0)...), fill(8)...)
	return append(ins,
		asm.JNE.Imm(asm.R0, 0, "nowhere"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R1, scratch).WithSymbol(label("in the window")),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R1, asm.R1, scratchWindow, asm.DWord),
		asm.StoreMem(asm.RFP, to, asm.R1, asm.DWord),
	)
}

// loadSavedReturn puts the saved return address of the call at R0 into R1, and the stack pointer after
// its return into R2.
func loadSavedReturn() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R0, callReturn, asm.DWord),
		asm.LoadMem(asm.R2, asm.R0, callStack, asm.DWord),
		asm.Add.Imm(asm.R2, popsReturn),
	}
}

// toCaller unwinds one frame by the rule in slotRule; it starts at the label "rule". It puts the return
// address into R1 and slotAddr, and the CFA into slotCFA. Without a caller it jumps to "outermost" or
// "nowhere".
func (m *bpf) toCaller(sp, scratch asm.Register) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, ruleBase, asm.DWord).WithSymbol("rule"),
		asm.JEq.Imm(asm.R2, int32(unwind.NoBase), "outermost"),
		asm.JNE.Imm(asm.R2, int32(unwind.FromTrampoline), "unwind"),
	}
	ins = append(append(ins, lookUp(m.libraryCalls, slotThread)...), asm.JEq.Imm(asm.R0, 0, "nowhere"))
	ins = append(ins, loadSavedReturn()...)
	ins = append(ins,
		asm.JNE.Reg(asm.R2, sp, "nowhere"),
		asm.StoreMem(asm.RFP, slotCFA, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, slotAddr, asm.R1, asm.DWord),
		asm.Ja.Label("returned"),
		asm.LoadMem(asm.R2, asm.RFP, ruleBase, asm.DWord).WithSymbol("unwind"),
	)
	ins = append(ins, plus(asm.Mov.Reg(asm.R3, sp), ruleCFAOffset)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, int32(unwind.FromSP), "begins"))
	ins = append(ins, plus(asm.LoadMem(asm.R3, asm.RFP, slotFP, asm.DWord), ruleCFAOffset)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, int32(unwind.FromFP), "begins"))
	ins = append(ins, readStack(scratch, slotDeref)...)
	ins = append(ins,
		asm.LoadMem(asm.R3, asm.RFP, slotDeref, asm.DWord),
		asm.StoreMem(asm.RFP, slotCFA, asm.R3, asm.DWord).WithSymbol("begins"),
		asm.Mov.Reg(asm.R1, sp),
		asm.Sub.Reg(asm.R1, asm.R3),
		asm.JLT.Imm(asm.R1, maxApart, "nowhere"),
	)
	return append(ins, readCaller(scratch)...)
}

// plus adds an offset of the rule to what base puts into R3.
func plus(base asm.Instruction, offset int16) asm.Instructions {
	return asm.Instructions{base, asm.LoadMem(asm.R1, asm.RFP, offset, asm.DWord), asm.Add.Reg(asm.R3, asm.R1)}
}

// readCaller reads the caller's frame pointer, if the rule says where it is saved, and the return
// address, for the frame with the CFA in slotCFA.
func readCaller(scratch asm.Register) asm.Instructions {
	read := func(from asm.Instructions, to int16) asm.Instructions { return append(from, readStack(scratch, to)...) }
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, ruleFPBase, asm.DWord),
		asm.JEq.Imm(asm.R2, int32(unwind.NoBase), "pointer"),
		asm.JEq.Imm(asm.R2, int32(unwind.FromSP), "kept"),
		asm.LoadMem(asm.R3, asm.RFP, slotFP, asm.DWord),
	}
	kept := plus(asm.Mov.Reg(asm.R3, asm.R3), ruleFPOffset)
	kept[0] = kept[0].WithSymbol("kept")
	ins = append(ins, read(kept, slotFP)...)
	back := plus(asm.LoadMem(asm.R3, asm.RFP, slotCFA, asm.DWord), ruleReturnOffset)
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

// copyStack outputs the stack from the first frame without a rule on, in parts. The fuller the ring
// buffer, the less is copied, and nothing if it is half full: events matter more than the callers of
// some. The label at its end is "copied".
func (m *bpf) copyStack() asm.Instructions {
	half := m.ring.MaxEntries() / 2
	ins := append(store(asm.RFP, slotWake, int32(noWake)),
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
		asm.LoadMem(asm.R1, asm.R2, scratchDepth+event.InEnd, asm.Byte),
		asm.JNE.Imm(asm.R1, int32(event.UnknownFunction), "copied"),
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Imm(asm.R2, 0), // BPF_RB_AVAIL_DATA
		asm.FnRingbufQuery.Call(),
		asm.Mov.Imm(asm.R1, int32(half)),
		asm.JGE.Reg(asm.R0, asm.R1, "too full"),
		asm.Sub.Reg(asm.R1, asm.R0),
		asm.RSh.Imm(asm.R1, int32(bits.Len32(half/event.MaxCopy)-1)), // all, if the ring buffer is empty
		asm.StoreMem(asm.RFP, slotRead, asm.R1, asm.DWord),
	)
	ins = append(ins, m.stackSize()...)
	ins = append(ins, store(asm.RFP, slotWake, int32(wake))...) // the sooner rules are loaded, the fewer copies are needed
	ins = append(ins, store(asm.RFP, slotIndex, 0)...)
	ins = append(ins, m.copyPart()...)
	return append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, slotIndex, asm.R1, asm.DWord),
		asm.JGE.Imm(asm.R1, event.MaxCopy/event.Chunk, "copied"),
		asm.LSh.Imm(asm.R1, event.ChunkBits),
		asm.LoadMem(asm.R2, asm.RFP, slotRead, asm.DWord),
		asm.JLT.Reg(asm.R1, asm.R2, "next part"),
		asm.Ja.Label("copied"),
		asm.Mov.Imm(asm.R2, int32(noWake)).WithSymbol("none there"),
		asm.FnRingbufDiscard.Call(),
		asm.Ja.Label("copied"),
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord).WithSymbol("too full"),
		asm.Mov.Imm(asm.R1, int32(event.CopyDropped)),
		asm.StoreMem(asm.R2, scratchDepth+event.InEnd, asm.R1, asm.Byte),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("copied"),
	)
}

// copyPart outputs the part of the stack with the index in slotIndex. It starts at the label
// "next part". If the stack ends within the part, it jumps to "none there" with the part's address in R1.
func (m *bpf) copyPart() asm.Instructions {
	const part = regEvent
	ins := asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ring.FD()).WithSymbol("next part"),
		asm.Mov.Imm(asm.R2, event.PartSize),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "too full"),
		asm.Mov.Reg(part, asm.R0),
		asm.StoreMem(part, event.OffThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(event.StackPart)<<32, asm.DWord),
		asm.StoreMem(part, event.OffWhat, asm.R1, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
	}
	for i, from := range []int16{scratchSP, scratchFP, scratchSavedReturn, scratchSavedReturnSP} {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R2, from, asm.DWord), asm.StoreMem(part, event.OffUnknown+8*int16(i), asm.R1, asm.DWord))
	}
	return append(ins,
		asm.LoadMem(asm.R3, asm.R2, scratchSP, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.LSh.Imm(asm.R1, event.ChunkBits),
		asm.StoreMem(part, event.OffUnknown+32, asm.R1, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R1),
		asm.Mov.Reg(asm.R1, part),
		asm.Add.Imm(asm.R1, event.OffPart),
		asm.Mov.Imm(asm.R2, event.Chunk),
		asm.FnProbeReadUser.Call(),
		asm.Mov.Reg(asm.R1, part),
		asm.JNE.Imm(asm.R0, 0, "none there"),
		asm.Mov.Imm(asm.R2, int32(noWake)),
		asm.FnRingbufSubmit.Call(),
	)
}

// stackSize lowers the size in slotRead to what there is of the stack: up to the top of the process's
// first stack, or up to the thread control block, which is above the stack of a thread that the C
// library made.
func (m *bpf) stackSize() asm.Instructions {
	upTo := func(label string) asm.Instructions { // of an address in R0
		return asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
			asm.LoadMem(asm.R1, asm.R2, scratchSP, asm.DWord),
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

// ruleKey is the key of an unwind rule.
type ruleKey struct {
	PID, Generation uint32
	PC              uint64
}

// Byte offsets in a thread's scratch buffer.
const (
	scratchNext          = 8 * iota               // index of the program to tail call at the end
	scratchPC                                     // innermost address
	scratchSP                                     // of the last certain frame, if its function is unknown
	scratchFP                                     //
	scratchSavedReturn                            // see event.StackCopy
	scratchSavedReturnSP                          //
	scratchWindowAt                               // the address that the window begins at
	scratchWindow                                 // a cached part of the thread's stack
	scratchEvent         = scratchWindow + window // an event without frames of Python
	scratchFrames        = scratchEvent + event.OffFrames
	scratchDepth         = scratchEvent + event.OffDepth
	scratchNewCode       = scratchFrames + 8*event.MaxFrames // number of unknown code objects of Python, and a byte each for the index of its frame
	scratchNewCodeAt     = scratchNewCode + 8
	scratchSize          = scratchNewCodeAt + 24
)

// window is how many bytes of a stack a probe reads at once: those of several frames.
const window = 1 << 10
