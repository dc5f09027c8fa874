//go:build amd64 || arm64

package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

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

// readSoonGone reads what may soon be gone, until the probes are closed: programs that begin. Their interpreter must be known before they call the
// driver, on a busy machine too.
func (p *probes) readSoonGone(of *python.Processes, begins func(of program, file string)) {
	p.pythons, p.looked = of, make(chan (<-chan struct{}))
	go func() {
		beUrgent()
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
			its := program{uint32(binary.NativeEndian.Uint64(b)), binary.NativeEndian.Uint64(b[8:])}
			file, _, _ := bytes.Cut(b[soonGoneSize:], []byte{0})
			before, done := latest, make(chan struct{})
			latest = done
			go func() {
				defer close(done)
				begins(its, string(file))
				<-before
			}()
			go func() {
				beUrgent()
				of.Expect(int(its.pid))
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
