//go:build amd64 || arm64

package attach

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// bpf has the maps that the programs share, and makes the programs.
type bpf struct {
	ring         *ebpf.Map // events
	watched      *ebpf.Map // by process: its code generation, and the generation since which no code was unmapped
	driverCalls  *ebpf.Map // by thread: its current call of the driver
	libraryCalls *ebpf.Map // by thread: its current call of another library, which may call the driver
	loss         *ebpf.Map // see lossCount

	scratch     *ebpf.Map // by thread: scratch buffer, see scratchNext
	zeroScratch *ebpf.Map // an empty scratch buffer
	unwindRules *ebpf.Map // by return address, see ruleKey: unwind.CompactRule

	python           *ebpf.Map // by process: the layout of its Python interpreter
	pythonFrames     *ebpf.Map // by thread: scratch buffer for Python frames of its current call
	zeroPythonFrames *ebpf.Map // an empty one
	tailCalls        *ebpf.Map // targets of tail calls: see tailPrograms
	knownCode        *ebpf.Map // by process and address: code objects that were copied, see knownDigest
	execs            *ebpf.Map // ring buffer of execs: process, program number, path
	offsets                    // offsets in the kernel's structures
}

// Indexes in bpf.loss.
const (
	lossCount = iota // number of events that the ring buffer had no room for
	lossSince        // time of the first
	lossSlots
)

const (
	maxProcesses  = 1 << 14
	maxThreads    = 1 << 16
	maxScratch    = 1 << 13 // threads that allocate at the same time, 2.3 KiB each
	execRingBytes = 1 << 16
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
		{&m.watched, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: maxProcesses}},
		{&m.driverCalls, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: maxThreads}},
		{&m.libraryCalls, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: maxThreads}},
		{&m.loss, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: lossSlots}},
		{&m.scratch, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: scratchSize, MaxEntries: maxScratch}},
		{&m.zeroScratch, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: scratchSize, MaxEntries: 1}},
		{&m.unwindRules, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 16, ValueSize: 40, MaxEntries: event.MaxUnwindRules}},
		{&m.python, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8 * pyWords, MaxEntries: maxProcesses}},
		{&m.pythonFrames, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: pyScratchSize, MaxEntries: maxPyCalls}},
		{&m.zeroPythonFrames, ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: pyScratchSize, MaxEntries: 1}},
		{&m.knownCode, ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 8, ValueSize: knownSize, MaxEntries: maxKnownCode}},
		{&m.execs, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: execRingBytes}},
		{&m.tailCalls, ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: uint32(tailPrograms + functions)}},
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
	for _, each := range []*ebpf.Map{m.ring, m.watched, m.driverCalls, m.libraryCalls, m.loss, m.scratch, m.zeroScratch, m.unwindRules, m.python, m.pythonFrames, m.zeroPythonFrames, m.tailCalls, m.knownCode, m.execs} {
		if each != nil {
			each.Close()
		}
	}
}

// prologue loads the thread ID, and ends the program if the process is not watched.
func (m *bpf) prologue() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(regCtx, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(regThread, asm.R0),
		asm.StoreMem(asm.RFP, slotThread, regThread, asm.DWord),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, slotKey, asm.R0, asm.Word),
	}
	return append(append(ins, lookUp(m.watched, slotKey)...), asm.JEq.Imm(asm.R0, 0, "end"))
}

// reserve reserves an event in the ring buffer, and sets the fields that all events have.
func (m *bpf) reserve(size int32, function int, p event.Phase) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Imm(asm.R2, size),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(regEvent, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regEvent, event.OffTime, asm.R0, asm.DWord),
		asm.StoreMem(regEvent, event.OffThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(p)<<32|int64(function), asm.DWord),
		asm.StoreMem(regEvent, event.OffWhat, asm.R1, asm.DWord),
	}
}

// epilogue ends a program that writes an event. Its label "lost" counts a dropped event.
func (m *bpf) epilogue() asm.Instructions {
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

// A record of the ring buffer of execs, and its stack slot.
const (
	execSize = 16  // bytes of the process ID and the program's number
	maxPath  = 256 // bytes of the path, with its terminating 0
	slotExec = slotWake - execSize - maxPath
)

// shortEvent writes an event whose arguments are the word in slotWord, the number that generation set,
// the thread's control group and, after an exec, the kernel's name of the program.
func (m *bpf) shortEvent(p event.Phase, n wakeUp) asm.Instructions {
	ins := m.reserve(event.ShortSize, 0, p)
	ins = append(ins, zero(event.OffResult, event.ShortSize)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		asm.StoreMem(regEvent, event.OffArgs, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotScratch, asm.DWord),
		asm.StoreMem(regEvent, event.OffArgs+8, asm.R1, asm.DWord),
		asm.FnGetCurrentCgroupId.Call(),
		asm.StoreMem(regEvent, event.OffArgs+16, asm.R0, asm.DWord),
	)
	if p == event.Execed {
		ins = append(ins, asm.Mov.Reg(asm.R1, regEvent), asm.Add.Imm(asm.R1, event.OffArgs+24), asm.Mov.Imm(asm.R2, 16), asm.FnGetCurrentComm.Call())
	}
	ins = append(ins, submit(n)...)
	return append(ins, m.epilogue()...)
}

// fork adds the children of a watched process to the watched ones.
func (m *bpf) fork() asm.Instructions {
	ins := m.prologue()
	ins = append(ins, asm.LoadMem(asm.R3, regCtx, 8, asm.DWord)) // the child's task
	ins = append(ins, readKernel(m.tgid, 4)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotWord, asm.DWord),
		asm.Mov.Reg(asm.R2, regThread),
		asm.RSh.Imm(asm.R2, 32),
		asm.JEq.Reg(asm.R1, asm.R2, "end"), // a thread of the same process
	)
	ins = append(ins, m.generation(slotWord)...)
	return append(ins, m.shortEvent(event.Forked, wake)...)
}

// generation sets a new code generation, since which code may have been unmapped, for the process whose
// ID is in a stack slot, and adds the process to the watched ones.
func (m *bpf) generation(process int32) asm.Instructions {
	return asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, slotScratch, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, slotLayout, asm.R0, asm.Word),
		asm.StoreMem(asm.RFP, slotLayout+4, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.watched.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, process),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotLayout),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}
}

// exec sets a new code generation. It outputs the exec record with the path of the program first.
func (m *bpf) exec() asm.Instructions {
	ins := append(m.prologue(), m.generation(slotKey)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, slotExec, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotScratch, asm.DWord),
		asm.StoreMem(asm.RFP, slotExec+8, asm.R1, asm.DWord),
	)
	ins = append(ins, asm.LoadMem(asm.R3, regCtx, 16, asm.DWord))
	ins = append(ins, readKernel(m.file, 8)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, slotExec+execSize),
		asm.Mov.Imm(asm.R2, maxPath),
		asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord),
		asm.FnProbeReadKernelStr.Call(),
	)
	ins = append(ins, m.outputExec()...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, slotScratch, asm.DWord),
		asm.StoreMem(asm.RFP, slotWord, asm.R1, asm.DWord),
	)
	return append(ins, m.shortEvent(event.Execed, wake)...)
}

// dlopen sets a new code generation before the process maps code.
func (m *bpf) dlopen() asm.Instructions {
	return slices.Concat(m.prologue(), asm.Instructions{
		asm.Mov.Reg(regCall, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regCall, 0, asm.R0, asm.Word),
	}, end())
}

// dlclose sets a new code generation before the process unmaps code, and outputs an event: addresses
// may soon mean something else. Code that replaces other code is mapped after that was unmapped. So if
// no code was unmapped between an event and a read of the maps, the maps hold for the addresses of the
// event.
func (m *bpf) dlclose() asm.Instructions {
	return slices.Concat(m.prologue(), m.generation(slotKey), store(asm.RFP, slotWord, 0), m.shortEvent(event.CodeUnloaded, noWake))
}

// outputExec outputs the record in slotExec to the ring buffer of execs.
func (m *bpf) outputExec() asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.execs.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotExec),
		asm.Mov.Imm(asm.R3, execSize+maxPath),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
	}
}

// exit ends a thread, and with the last one its process.
func (m *bpf) exit() asm.Instructions {
	ins := append(m.prologue(), asm.LoadMem(asm.R3, regCtx, 0, asm.DWord)) // the task
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
		asm.LoadMapPtr(asm.R1, m.watched.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotKey),
		asm.FnMapDeleteElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("thread"),
	)
	ins = append(ins, store(asm.RFP, slotScratch, 0)...)
	return append(ins, m.shortEvent(event.Exited, wake)...)
}

// entryProbe is the program at the start of a function. A watched call inside a watched call is internal
// to the library and ignored, unless it frees. A call that never returned (by longjmp) is recognized by
// its stack pointer, which is not above that of this call.
func (m *bpf) entryProbe(index int, f event.Function) asm.Instructions {
	effect := f.Effect
	ins := m.prologue()
	ins = append(ins, lookUp(m.callsOf(f), slotThread)...)
	ins = append(ins,
		asm.LoadMem(asm.R2, regCtx, stackReg, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, "outer"),
		asm.LoadMem(asm.R1, asm.R0, callStack, asm.DWord),
	)
	if effect != event.LibraryFrees {
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
	if !effect.EntryOnly() {
		ins = append(append(ins, saveReturnAddress(f)...), saveCall(m.callsOf(f))...)
	}
	if effect.AppliesAtEntry() || effect.EntryOnly() {
		return append(ins, m.outputCall(index)...)
	}
	return append(ins, end()...)
}

// saveReturnAddress saves the return address of a library's function. The kernel replaces it by its
// trampoline for the uretprobe, which would hide the callers of driver calls in the function.
func saveReturnAddress(f event.Function) asm.Instructions {
	ins := store(asm.RFP, slotCall+callReturn, 0)
	switch {
	case f.Library == "":
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

// saveCall copies the call in slotCall into a map of calls.
func saveCall(calls *ebpf.Map) asm.Instructions {
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

// outputCall writes an event of the call in slotCall, and ends the program.
func (m *bpf) outputCall(index int) asm.Instructions {
	ins := append(m.reserve(event.ShortSize, index, event.AtEntry), zero(event.OffResult, event.OffArgs)...)
	for i := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, asm.RFP, slotCall+callArguments+8*int16(i), asm.DWord),
			asm.StoreMem(regEvent, event.OffArgs+8*int16(i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins, submit(noWake)...)
	return append(ins, m.epilogue()...)
}

// A static probe is not at the start of a function: its note says where its arguments are, and it has
// no return. Its program stores them like the arguments of a call and, for an allocation, continues as
// at the return of a call.

// staticProbe is the program of a static probe.
func (m *bpf) staticProbe(index int, f event.Function, its []symbols.NoteArgument) (asm.Instructions, error) {
	ins := append(m.prologue(),
		asm.LoadMem(asm.R1, regCtx, stackReg, asm.DWord),
		asm.StoreMem(asm.RFP, slotCall+callStack, asm.R1, asm.DWord),
	)
	ins = append(ins, store(asm.RFP, slotCall+callFunction, int32(index))...)
	for i := range argumentRegs {
		value := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
		if i < len(its) {
			var err error
			if value, err = readArgument(its[i]); err != nil {
				return nil, err
			}
		}
		ins = append(append(ins, value...), asm.StoreMem(asm.RFP, slotCall+callArguments+8*int16(i), asm.R1, asm.DWord))
	}
	if !f.Effect.RecordsStack() {
		return append(ins, m.outputCall(index)...), nil
	}
	ins = append(ins, store(asm.RFP, slotCall+callReturn, 0)...)
	ins = append(ins, saveCall(m.callsOf(f))...)
	ins = append(ins, m.startUnwind(index, asm.Instructions{
		asm.LoadMem(asm.R1, regCtx, nextReg, asm.DWord),
		asm.Add.Imm(asm.R1, 1), // rules are looked up for the byte before an address, as for return addresses
	})...)
	return append(ins, m.epilogue()...), nil
}

// deleteCall ends a program at the end of a call. It starts at the label "done".
func (m *bpf) deleteCall(f event.Function) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.callsOf(f).FD()).WithSymbol("done"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotThread),
		asm.FnMapDeleteElem.Call(),
	}
	return append(ins, m.epilogue()...)
}

// Indexes of tail call targets. Behind them are the programs that write the events of functions, by
// index of the function.
const (
	tailUnwind   = iota // unwinds the stack
	tailPython          // walks the frames of Python
	tailCopyCode        // copies unknown code objects of them
	tailPrograms
)

// tailCall continues with another program, if it is loaded. The instruction puts its index into R3.
func (m *bpf) tailCall(number asm.Instruction) asm.Instructions {
	return asm.Instructions{
		number,
		asm.Mov.Reg(asm.R1, regCtx),
		asm.LoadMapPtr(asm.R2, m.tailCalls.FD()),
		asm.FnTailCall.Call(),
	}
}

// returnProbe is the program at the return of a function.
func (m *bpf) returnProbe(index int, f event.Function) asm.Instructions {
	ins := m.prologue()
	ins = append(ins, m.checkReturn(index, f)...)
	if f.Effect.AppliesAtEntry() { // only a failure is reported
		ins = append(ins,
			asm.LoadMem(asm.R1, regCtx, resultReg, asm.Word),
			asm.JEq.Imm(asm.R1, 0, "done"),
		)
	}
	notify := noWake
	if f.Effect == event.MakesContext || f.Effect == event.RetainsPrimary {
		notify = wake
	}
	if f.Effect.RecordsStack() {
		ins = append(ins, m.startUnwind(index, asm.Instructions{asm.LoadMem(asm.R1, regCtx, nextReg, asm.DWord)})...)
		return append(ins, m.epilogue()...)
	}
	ins = append(ins, m.reserve(event.ShortSize, index, event.AtReturn)...)
	ins = append(ins, writeResult(f)...)
	ins = append(ins, submit(notify)...)
	return append(ins, m.deleteCall(f)...)
}

// stackEvent is the program that writes the event of an allocation after its stack was unwound: after a
// copy of the stack if a rule is missing, and with Python frames if the process runs Python. It builds
// the event in the thread's scratch buffer, or in that for Python frames.
func (m *bpf) stackEvent(index int, f event.Function) asm.Instructions {
	ins := append(m.prologue(), lookUp(m.callsOf(f), slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(regCall, asm.R0))
	ins = append(ins, lookUp(m.scratch, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "lost"), asm.StoreMem(asm.RFP, slotScratch, asm.R0, asm.DWord))
	ins = append(append(ins, m.findLayout()...), m.copyStack()...)
	ins = append(ins, asm.LoadMem(asm.R0, asm.RFP, slotLayout, asm.DWord), asm.JEq.Imm(asm.R0, 0, "native"))

	ins = append(ins, lookUp(m.pythonFrames, slotThread)...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "native"), asm.Mov.Reg(regEvent, asm.R0))
	ins = append(append(ins, writeCall(index, f)...), joinFrames()...)
	ins = append(ins, m.output()...)
	ins = append(ins, asm.Mov.Imm(asm.R4, 0), asm.StoreMem(regEvent, event.OffPython, asm.R4, asm.DWord), asm.Ja.Label("done")) // the next call may have none

	ins = append(ins,
		asm.LoadMem(regEvent, asm.RFP, slotScratch, asm.DWord).WithSymbol("native"),
		asm.Add.Imm(regEvent, scratchEvent),
	)
	ins = append(append(ins, writeCall(index, f)...), sizeOfFrames(asm.R3)...)
	ins = append(ins, asm.Add.Imm(asm.R3, event.OffFrames))
	ins = append(ins, m.output()...)
	return append(ins, m.deleteCall(f)...)
}

// writeCall sets the fields that all events of calls have.
func writeCall(index int, f event.Function) asm.Instructions {
	ins := asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(regEvent, event.OffTime, asm.R0, asm.DWord),
		asm.StoreMem(regEvent, event.OffThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(event.AtReturn)<<32|int64(index), asm.DWord),
		asm.StoreMem(regEvent, event.OffWhat, asm.R1, asm.DWord),
	}
	ins = append(ins, writeResult(f)...)
	return append(ins,
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
		asm.LoadMem(asm.R1, asm.R2, scratchDepth, asm.DWord),
		asm.StoreMem(regEvent, event.OffDepth, asm.R1, asm.DWord),
	)
}

// sizeOfFrames puts the size of the native frames into a register.
func sizeOfFrames(to asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, slotScratch, asm.DWord),
		asm.LoadMem(to, asm.R2, scratchDepth+event.InTotal, asm.Byte),
		asm.JGT.Imm(to, event.MaxFrames, "lost"),
		asm.LSh.Imm(to, 3),
	}
}

// joinFrames appends the native frames to the frames of Python, and puts the event's size into R3.
func joinFrames() asm.Instructions {
	const size = regCall // no longer needed for the call
	ins := append(sizeOfFrames(size),
		asm.LoadMem(asm.R1, regEvent, event.OffPython, asm.DWord),
		asm.JGT.Imm(asm.R1, event.MaxPython, "lost"),
		asm.LSh.Imm(asm.R1, 4),
		asm.Add.Imm(asm.R1, event.OffFrames),
		asm.StoreMem(asm.RFP, slotWord, asm.R1, asm.DWord),
		asm.Add.Reg(asm.R1, regEvent),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.Add.Imm(asm.R3, scratchFrames),
		asm.Mov.Reg(asm.R2, size),
		asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord),
	)
	return append(ins, asm.Add.Reg(asm.R3, size))
}

// output outputs the event, whose size is in R3, and wakes the reader if rules are missing.
func (m *bpf) output() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R4, asm.RFP, slotWake, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.ring.FD()),
		asm.Mov.Reg(asm.R2, regEvent),
		asm.FnRingbufOutput.Call(),
		asm.JNE.Imm(asm.R0, 0, "lost"),
	}
}

// checkReturn ends the program unless this is the return of the thread's current call: of the same
// function, and with the same stack pointer.
func (m *bpf) checkReturn(index int, f event.Function) asm.Instructions {
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

// writeResult sets the result of a call, its arguments and what it wrote through them.
func writeResult(f event.Function) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, regCtx, resultReg, asm.DWord),
		asm.StoreMem(regEvent, event.OffResult, asm.R1, asm.DWord),
	}
	for i := range argumentRegs {
		ins = append(ins,
			asm.LoadMem(asm.R1, regCall, callArguments+8*int16(i), asm.DWord),
			asm.StoreMem(regEvent, event.OffArgs+8*int16(i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins, zero(event.OffOut, event.OffArgs)...)
	if f.Effect.RecordsStack() {
		ins = append(ins, zero(event.OffDesc, event.OffDepth)...)
	}
	if f.WritesResult() {
		ins = append(ins, readUser(event.OffOut, 8, int16(f.Address))...)
	}
	if f.Effect == event.AllocatesPitched {
		ins = append(ins, readUser(event.OffPitch, 8, 1)...)
	}
	if f.Effect.UsesDescriptor() {
		ins = append(ins, readUser(event.OffDesc, event.OffDepth-event.OffDesc, 1)...)
	}
	return ins
}

// callsOf returns the map of calls for a function.
func (m *bpf) callsOf(f event.Function) *ebpf.Map {
	if f.Library != "" {
		return m.libraryCalls
	}
	return m.driverCalls
}
