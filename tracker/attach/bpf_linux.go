//go:build amd64 || arm64

package attach

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
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

// What the reader of what is soon gone gets, and room for it on the program's stack.
const (
	soonGoneSize = 16  // bytes: the process, and the program's number
	maxPath      = 256 // and bytes of the path of the program, with its 0
	slotBegun    = slotWake - soonGoneSize - maxPath
)

// short writes an event whose arguments are two words on the program's stack, in slotWord and the number that generation gave, the
// thread's control group and, of a program that begins, the name that the kernel has for it.
func (m *bpf) short(p phase, n notice) asm.Instructions {
	ins := m.reserve(shortSize, 0, p)
	ins = append(ins, zero(offResult, shortSize)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		asm.StoreMem(regEvent, offArgs, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotRoom, asm.DWord),
		asm.StoreMem(regEvent, offArgs+8, asm.R1, asm.DWord),
		asm.FnGetCurrentCgroupId.Call(),
		asm.StoreMem(regEvent, offArgs+16, asm.R0, asm.DWord),
	)
	if p == execed {
		ins = append(ins, asm.Mov.Reg(asm.R1, regEvent), asm.Add.Imm(asm.R1, offArgs+24), asm.Mov.Imm(asm.R2, 16), asm.FnGetCurrentComm.Call())
	}
	ins = append(ins, submit(n)...)
	return append(ins, m.finish()...)
}

// fork makes the children of a process that is watched part of its family.
func (m *bpf) fork() asm.Instructions {
	ins := m.begin()
	ins = append(ins, asm.LoadMem(asm.R3, regCtx, 8, asm.DWord)) // the child's task
	ins = append(ins, readKernel(m.tgid, 4)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		asm.Mov.Reg(asm.R2, regThread),
		asm.RSh.Imm(asm.R2, 32),
		asm.JEq.Reg(asm.R1, asm.R2, "end"), // a thread of the same process
	)
	ins = append(ins, m.generation(slotWord)...)
	return append(ins, m.short(forked, wakes)...)
}

// generation gives the process whose number is on the program's stack a number that none had before, from which on code may have gone, and
// the family with it.
func (m *bpf) generation(process int32) asm.Instructions {
	return asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, slotRoom, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, slotLayout, asm.R0, asm.Word),
		asm.StoreMem(asm.RFP, slotLayout+4, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.family.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, process),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotLayout),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}
}

// exec gives the process another generation: its code is another. The reader of what is soon gone is told first, with the program's file.
func (m *bpf) exec() asm.Instructions {
	ins := append(m.begin(), m.generation(slotKey)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotBegun, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotRoom, asm.DWord),
		asm.StoreMem(asm.RFP, slotBegun+8, asm.R1, asm.DWord),
	)
	ins = append(ins, asm.LoadMem(asm.R3, regCtx, 16, asm.DWord))
	ins = append(ins, readKernel(m.file, 8)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, slotBegun+soonGoneSize),
		asm.Mov.Imm(asm.R2, maxPath),
		asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord),
		asm.FnProbeReadKernelStr.Call(),
	)
	ins = append(ins, m.tellSoonGone()...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotRoom, asm.DWord),
		asm.StoreMem(asm.RFP, slotWord, asm.R1, asm.DWord),
	)
	return append(ins, m.short(execed, wakes)...)
}

// links gives the process another generation as it begins to load code.
func (m *bpf) links() asm.Instructions {
	return slices.Concat(m.begin(), asm.Instructions{
		asm.Mov.Reg(regCall, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regCall, 0, asm.R0, asm.Word),
	}, end())
}

// unlinks does so as the process begins to take code away: addresses may mean something else soon, and the reader is told.
// What takes the place of other code is loaded after that has gone, so a reader that reads the maps and finds that no code has gone
// since an event knows what the addresses of that meant.
func (m *bpf) unlinks() asm.Instructions {
	return slices.Concat(m.begin(), m.generation(slotKey), store(asm.RFP, slotWord, 0), m.short(unlinked, waits))
}

// tellSoonGone passes what begins at slotBegun on the program's stack to the reader of what is soon gone.
func (m *bpf) tellSoonGone() asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.soonGone.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotBegun),
		asm.Mov.Imm(asm.R3, soonGoneSize+maxPath),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
	}
}

// exit ends a thread, and with the last one its process.
func (m *bpf) exit() asm.Instructions {
	ins := append(m.begin(), asm.LoadMem(asm.R3, regCtx, 0, asm.DWord)) // the task
	ins = append(ins, readKernel(m.signal, 8)...)
	ins = append(ins, asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord))
	ins = append(ins, readKernel(m.live, 4)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
	)
	ins = append(ins, store(asm.RFP, slotWord, 0)...)
	ins = append(ins, asm.JNE.Imm(asm.R1, 0, "thread"))
	ins = append(ins, store(asm.RFP, slotWord, 1)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotKey, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.family.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotKey),
		asm.FnMapDeleteElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("thread"),
	)
	ins = append(ins, store(asm.RFP, slotRoom, 0)...)
	return append(ins, m.short(exited, wakes)...)
}

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

// callsOf returns the map with the calls of a function's library.
func (m *bpf) callsOf(f function) *ebpf.Map {
	if f.library != "" {
		return m.others
	}
	return m.calls
}
