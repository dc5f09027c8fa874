//go:build amd64 || arm64

package attach

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// bpf is the maps that the programs share, and the parts of programs that several have.
type bpf struct {
	ring   *ebpf.Map // events
	family *ebpf.Map // the processes that are watched: the generation of each, and since which of them no code has gone
	calls  *ebpf.Map // by thread: the driver function that the thread is in
	others *ebpf.Map // the same of other libraries, whose functions call the driver's
	loss   *ebpf.Map // see lossCount

	rooms *ebpf.Map // by thread: its stack, see roomNext
	blank *ebpf.Map // such room, empty
	steps *ebpf.Map // how to get from a return address to the next: see stepKey

	python   *ebpf.Map // by process: the layout of its Python interpreter
	running  *ebpf.Map // by thread: the Python frames at the call that the thread is in
	noFrames *ebpf.Map // a value without Python frames, to start each entry of running from
	follow   *ebpf.Map // programs that others end by: see followers
	seen     *ebpf.Map // code objects, by process and address: see seenPrint
	soonGone *ebpf.Map // what is to be read at once: programs that begin. Process, number, path
	offsets            // offsets in the kernel's structures
}

// Indexes in the map of losses.
const (
	lossCount = iota // index of the counter of events for which the ring had no room
	lossSince        // when the first was lost
	lossSlots
)

const (
	maxProcesses  = 1 << 14
	maxThreads    = 1 << 16
	maxRooms      = 1 << 13 // threads that allocate at a time, 2.3 KiB each
	soonGoneBytes = 1 << 16
	callSize      = callReturn + 8
)

func newMaps(ringBytes, functions int) (m *bpf, err error) {
	m = new(bpf)
	if m.offsets, err = kernelOffsets(); err != nil {
		return m, fmt.Errorf("the kernel's types (BTF): %w", err)
	}
	for _, it := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&m.ring, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(ringBytes)}},
		{&m.family, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: maxProcesses}},
		{&m.calls, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: maxThreads}},
		{&m.others, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: maxThreads}},
		{&m.loss, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: lossSlots}},
		{&m.rooms, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: roomSize, MaxEntries: maxRooms}},
		{&m.blank, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: roomSize, MaxEntries: 1}},
		{&m.steps, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 16, ValueSize: 40, MaxEntries: maxSteps}},
		{&m.python, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8 * pyWords, MaxEntries: maxProcesses}},
		{&m.running, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: pyRoom, MaxEntries: maxPyCalls}},
		{&m.noFrames, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: pyRoom, MaxEntries: 1}},
		{&m.seen, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: seenSize, MaxEntries: maxSeen}},
		{&m.soonGone, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: soonGoneBytes}},
		{&m.follow, ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: uint32(followers + functions)}},
	} {
		it.spec.Name = "gpumemtrack"
		if *it.to, err = ebpf.NewMap(&it.spec); err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

func (m *bpf) close() {
	for _, each := range []*ebpf.Map{m.ring, m.family, m.calls, m.others, m.loss, m.rooms, m.blank, m.steps, m.python, m.running, m.noFrames, m.follow, m.seen, m.soonGone} {
		if each != nil {
			each.Close()
		}
	}
}

// Registers that keep what every program needs: calls of helpers leave them alone.
const (
	regCtx    = asm.R6
	regThread = asm.R7 // process in the upper half, thread in the lower
	regCall   = asm.R8 // where the call is kept
	regEvent  = asm.R9
)

// A call, in the maps.
const (
	callStack     = 0 // the stack pointer
	callFunction  = 8
	callArguments = 16
	callReturn    = 64 // the return address of a function that a probe hides: see keepReturn
)

// Room on the program's stack.
const (
	slotThread = -8
	slotKey    = -12
	slotWord   = -24
	slotCall   = -96          // callSize bytes
	slotRoom   = slotCall - 8 // the address of the thread's room
)

// begin loads the thread, and ends the program if its process is not watched.
func (m *bpf) begin() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(regCtx, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(regThread, asm.R0),
		asm.StoreMem(asm.RFP, slotThread, regThread, asm.DWord),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, slotKey, asm.R0, asm.Word),
	}
	return append(append(ins, lookUp(m.family, slotKey)...), asm.JEq.Imm(asm.R0, 0, "end"))
}

// reserve takes room for an event in the ring and fills in the fields that all events have.
func (m *bpf) reserve(size int32, function int, p phase) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Imm(asm.R2, size),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(regEvent, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regEvent, offTime, asm.R0, asm.DWord),
		asm.StoreMem(regEvent, offThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(p)<<32|int64(function), asm.DWord),
		asm.StoreMem(regEvent, offWhat, asm.R1, asm.DWord),
	}
}

// store writes a number of 64 bits. It uses R4.
func store(base asm.Register, at int16, n int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R4, n), asm.StoreMem(base, at, asm.R4, asm.DWord)}
}

// zero clears the event's words from one offset to another.
func zero(from, to int16) (ins asm.Instructions) {
	for at := from; at < to; at += 8 {
		ins = append(ins, store(regEvent, at, 0)...)
	}
	return ins
}

// lookUp puts the address of a value into R0, or 0: of the key in a slot of the program's stack.
func lookUp(in *ebpf.Map, slot int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, in.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slot),
		asm.FnMapLookupElem.Call(),
	}
}

// notice is whether the reader is woken.
type notice int32

const (
	wakes notice = iota
	waits        // BPF_RB_NO_WAKEUP: the reader polls by itself. Waking it would cost the watched program more than all the rest
)

// submit gives the event to the reader.
func submit(n notice) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Mov.Imm(asm.R2, int32(n)),
		asm.FnRingbufSubmit.Call(),
	}
}

// finish is the last part of a program that writes an event: "lost" counts an event that found no room.
func (m *bpf) finish() asm.Instructions {
	slot := func(label string, index int64) asm.Instructions {
		ins := asm.Instructions{asm.StoreImm(asm.RFP, slotKey, index, asm.Word).WithSymbol(label)}
		return append(append(ins, lookUp(m.loss, slotKey)...), asm.JEq.Imm(asm.R0, 0, "end"))
	}
	ins := asm.Instructions{asm.Ja.Label("end")}
	ins = append(ins, slot("lost", lossCount)...)
	ins = append(ins,
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
	)
	ins = append(ins, slot("", lossSince)...)
	ins = append(ins,
		asm.Mov.Reg(regEvent, asm.R0),
		asm.LoadMem(asm.R1, regEvent, 0, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "end"),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regEvent, 0, asm.R0, asm.DWord),
	)
	return append(ins, end()...)
}

func end() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
}

// offsets are where the kernel has what the programs read of its processes.
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
		{&o.file, "linux_binprm", "interp"}, // a script's is its interpreter's
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

// offsetOf returns where a member is, which may be in a structure without a name; "" is the structure itself.
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

// readKernel copies a word of the kernel's, at an offset from the address in R3, to the program's stack.
func readKernel(offset, size int32) asm.Instructions {
	return append(store(asm.RFP, slotWord, 0),
		asm.Add.Imm(asm.R3, offset),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, slotWord),
		asm.Mov.Imm(asm.R2, size),
		asm.FnProbeReadKernel.Call(),
	)
}
