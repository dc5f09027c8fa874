//go:build amd64 || arm64

package attach

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// Callee-saved registers and their use in all programs.
const (
	regCtx    = asm.R6
	regThread = asm.R7 // process ID in the upper half, thread ID in the lower
	regCall   = asm.R8 // address of the call, in a map of calls
	regEvent  = asm.R9
)

// Byte offsets in a call, in the maps of calls.
const (
	callStack     = 0 // the stack pointer
	callFunction  = 8
	callArguments = 16
	callReturn    = 64 // the return address that a uretprobe replaces: see saveReturnAddress
)

// Slots on the program's stack.
const (
	slotThread  = -8
	slotKey     = -12
	slotWord    = -24
	slotCall    = -96          // callSize bytes
	slotScratch = slotCall - 8 // address of the thread's scratch buffer
)

// store writes a 64-bit constant. It clobbers R4.
func store(base asm.Register, at int16, n int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R4, n), asm.StoreMem(base, at, asm.R4, asm.DWord)}
}

// zero clears the words of the event from one offset to another.
func zero(from, to int16) (ins asm.Instructions) {
	for at := from; at < to; at += 8 {
		ins = append(ins, store(regEvent, at, 0)...)
	}
	return ins
}

// lookUp puts the address of a map value, or 0, into R0. The key is in a stack slot.
func lookUp(in *ebpf.Map, slot int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, in.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slot),
		asm.FnMapLookupElem.Call(),
	}
}

// wakeUp says whether submitting an event wakes the reader.
type wakeUp int32

const (
	wake   wakeUp = iota
	noWake        // BPF_RB_NO_WAKEUP: the reader polls. A wakeup would cost the watched program more than all the rest
)

// submit submits the event to the ring buffer.
func submit(n wakeUp) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Mov.Imm(asm.R2, int32(n)),
		asm.FnRingbufSubmit.Call(),
	}
}

func end() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
}

// readKernel copies kernel memory, at an offset from the address in R3, to slotWord.
func readKernel(offset, size int32) asm.Instructions {
	return append(store(asm.RFP, slotWord, 0),
		asm.Add.Imm(asm.R3, offset),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, slotWord),
		asm.Mov.Imm(asm.R2, size),
		asm.FnProbeReadKernel.Call(),
	)
}

// readArgument puts the value of a static probe's argument into R1.
func readArgument(a symbols.NoteArgument) (ins asm.Instructions, err error) {
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

// readUser copies what an argument of the call points to into the event.
func readUser(to int16, size int32, argument int16) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Add.Imm(asm.R1, int32(to)),
		asm.Mov.Imm(asm.R2, size),
		asm.LoadMem(asm.R3, regCall, callArguments+8*argument, asm.DWord),
		asm.FnProbeReadUser.Call(),
	}
}

// offsets are the offsets of the fields of kernel structures that the programs read.
type offsets struct{ tgid, signal, live, memory, startStack, threadBase, file int32 }

func kernelOffsets() (o offsets, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return o, err
	}
	var inThread int32
	for _, it := range []struct {
		to             *int32
		strukt, member string
	}{
		{&o.tgid, "task_struct", "tgid"}, {&o.signal, "task_struct", "signal"}, {&o.live, "signal_struct", "live"},
		{&o.memory, "task_struct", "mm"}, {&o.startStack, "mm_struct", "start_stack"}, {&o.threadBase, "task_struct", "thread"}, {&inThread, "thread_struct", threadBase},
		{&o.file, "linux_binprm", "interp"}, // of a script, its interpreter
	} {
		var s *btf.Struct
		if err := kernel.TypeByName(it.strukt, &s); err != nil {
			return o, err
		}
		if *it.to, err = offsetOf(s, it.member); err != nil {
			return o, fmt.Errorf("this kernel's %s: %w", it.strukt, err)
		}
	}
	o.threadBase += inThread
	return o, nil
}

// offsetOf returns the offset of a member, which may be in an anonymous structure; "" is the structure
// itself.
func offsetOf(s *btf.Struct, member string) (int32, error) {
	if member == "" {
		return 0, nil
	}
	for _, m := range s.Members {
		if m.Name == member {
			return int32(m.Offset.Bytes()), nil
		}
		if inner, ok := m.Type.(*btf.Struct); ok && m.Name == "" {
			if at, err := offsetOf(inner, member); err == nil {
				return int32(m.Offset.Bytes()) + at, nil
			}
		}
	}
	return 0, fmt.Errorf("no member %s", member)
}
