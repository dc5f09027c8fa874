//go:build amd64 || arm64

package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// probes are the programs in the kernel and what they write. The kernel removes them when they are
// closed, or when this process ends in any way.
type probes struct {
	maps   *bpf
	reader *ringbuf.Reader
	record ringbuf.Record

	prioritized sync.Once // see raisePriority

	execs        *ringbuf.Reader        // see readExecs
	execsHandled chan (<-chan struct{}) // see waitForExecs
	starts       startRecords
	loadedRules  map[int][]ruleKey           // by process: its keys in maps.unwindRules
	stackCopies  map[uint32]*event.StackCopy // by thread: parts of its stack, until its event is read

	attach                    ebpf.AttachType
	multi                     bool // the kernel (6.6 and newer) attaches many probes at once, and detaches them faster
	functions                 []event.Function
	entryProbes, returnProbes []*ebpf.Program // by index in functions; nil if there is none
	otherPrograms             []*ebpf.Program // targets of tail calls, and static probes
	dlopenProbe, dlcloseProbe *ebpf.Program   // also in otherPrograms; nil until a library with dlopen is found
	tracepoints               []*ebpf.Program
	attached                  []link.Link
}

// newProbes loads the programs. No library is probed yet.
func newProbes(cfg Config, functions []event.Function) (p *probes, err error) {
	if info, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino != initialPIDs {
			return nil, errors.New("this process does not see the machine's own process numbers: start the container with --pid=host")
		}
	}
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11; a failure shows when maps are made
	p = &probes{functions: functions, loadedRules: make(map[int][]ruleKey), stackCopies: make(map[uint32]*event.StackCopy), starts: startRecords{byProgram: make(map[event.Program]*event.StartRecord)}}
	defer func() {
		if err != nil {
			p.Close()
			err = explain(err)
		}
	}()
	if p.maps, err = newMaps(cfg.RingBufferBytes, len(functions)); err != nil {
		return p, err
	}
	if p.reader, err = ringbuf.NewReader(p.maps.ring); err != nil {
		return p, err
	}
	if p.execs, err = ringbuf.NewReader(p.maps.execs); err != nil {
		return p, err
	}
	if p.multi = !cfg.single && features.HaveBPFLinkUprobeMulti() == nil; p.multi {
		p.attach = ebpf.AttachTraceUprobeMulti
	}
	p.reader.SetDeadline(time.Now().Add(pollInterval))
	if err := p.loadTailCall(tailUnwind, p.maps.unwindStack()); err != nil {
		return p, err
	}
	if err := p.loadTailCall(tailPython, p.maps.walkPython()); err != nil {
		return p, err
	}
	if err := p.loadTailCall(tailCopyCode, p.maps.copyCode()); err != nil {
		return p, err
	}
	p.entryProbes, p.returnProbes = make([]*ebpf.Program, len(functions)), make([]*ebpf.Program, len(functions))
	for i, f := range functions {
		if f.Effect.RecordsStack() {
			if err := p.loadTailCall(tailPrograms+i, p.maps.stackEvent(i, f)); err != nil {
				return p, err
			}
		}
		if f.Note != "" { // static probes are loaded per file
			continue
		}
		if p.entryProbes[i], err = load(ebpf.Kprobe, p.attach, p.maps.entryProbe(i, f)); err != nil {
			return p, err
		}
		if f.Effect.EntryOnly() {
			continue
		}
		if p.returnProbes[i], err = load(ebpf.Kprobe, p.attach, p.maps.returnProbe(i, f)); err != nil {
			return p, err
		}
	}
	return p, p.attachTracepoints()
}

// loadTailCall loads a program that others end by.
func (p *probes) loadTailCall(number int, ins asm.Instructions) error {
	prog, err := load(ebpf.Kprobe, p.attach, ins)
	if err != nil {
		return err
	}
	p.otherPrograms = append(p.otherPrograms, prog)
	return p.maps.tailCalls.Put(uint32(number), prog)
}

// initialPIDs is the inode of the machine's own PID namespace.
const initialPIDs = 0xEFFFFFFC

func load(kind ebpf.ProgramType, attach ebpf.AttachType, ins asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "gpumemtrack", Type: kind, AttachType: attach, Instructions: ins, License: "GPL"})
}

// attachTracepoints attaches programs to forks, execs and exits.
func (p *probes) attachTracepoints() error {
	for name, ins := range map[string]asm.Instructions{
		"sched_process_fork": p.maps.fork(), "sched_process_exec": p.maps.exec(), "sched_process_exit": p.maps.exit(),
	} {
		prog, err := load(ebpf.RawTracepoint, ebpf.AttachNone, ins)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.tracepoints = append(p.tracepoints, prog)
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: prog})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.attached = append(p.attached, l)
	}
	return nil
}

// explain adds to an error of the kernel what the user can do.
func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM):
		return fmt.Errorf("the kernel refuses (%w): %s: run it as root (sudo, docker run --privileged --pid=host), or give them to the program "+
			"(sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep FILE). Without any, --preload (Config.Preload) watches a command that is started with it", unix.EPERM, lacking())
	case errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: probes need Linux 5.8 or newer with uprobes, BPF and BTF (CONFIG_UPROBE_EVENTS, CONFIG_BPF_EVENTS, CONFIG_DEBUG_INFO_BTF)", err)
	}
	return err
}

// lacking names the capabilities that this process needs and lacks.
func lacking() string {
	var all []string
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	var has uint64
	fmt.Sscanf(rest, "%x", &has)
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_PERFMON, "CAP_PERFMON"}, {unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"}} {
		if has&(1<<c.bit) == 0 {
			all = append(all, c.name)
		}
	}
	if all == nil {
		return "no capability is lacking, so a security module or the container's seccomp profile is in the way"
	}
	return "this process lacks " + strings.Join(all, ", ")
}

// Watch adds a process, and its future descendants, to the watched ones.
func (p *probes) Watch(pid int) error {
	err := p.maps.watched.Update(uint32(pid), [2]uint32{uint32(event.Now())}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

func (p *probes) CodeGeneration(pid int) (generation, since uint32, ok bool) {
	var value [2]uint32
	if p.maps == nil || p.maps.watched.Lookup(uint32(pid), &value) != nil {
		return 0, 0, false
	}
	return value[0], value[1], true
}

// Unwatch removes a process. Its descendants stay.
func (p *probes) Unwatch(pid int) { _ = p.maps.watched.Delete(uint32(pid)) } // it may have ended

// raisePriority locks the goroutine to a thread and raises its priority: beside hundreds of threads that
// only allocate it would fall behind. The thread ends with the goroutine.
func raisePriority() {
	const most = -20
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, most) // of this thread
}

// pollInterval is how long an event may wait until it is read.
const pollInterval = 10 * time.Millisecond

// Next waits for an event. The error is os.ErrClosed after close, and event.ErrFlushed when all
// that was there at a flush has been read.
func (p *probes) Next(e *event.Event) error {
	p.prioritized.Do(raisePriority)
	for {
		switch err := p.reader.ReadInto(&p.record); {
		case err == nil:
			err := e.Decode(p.record.RawSample)
			switch {
			case err != nil:
			case e.Phase == event.StackPart:
				p.join(e, p.record.RawSample)
				continue
			case e.Phase == event.Execed:
				e.Start = p.starts.take(event.Program{PID: e.PID, Number: e.Args[0]})
			case e.End == event.UnknownFunction:
				e.StackCopy = p.stackCopies[e.TID]
			}
			if e.Phase == event.Exited || e.StackCopy != nil {
				delete(p.stackCopies, e.TID)
			}
			return err
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.reader.SetDeadline(time.Now().Add(pollInterval))
		case errors.Is(err, ringbuf.ErrFlushed):
			return event.ErrFlushed
		default:
			return err
		}
	}
}

// join adds a part of a thread's stack to those before it.
func (p *probes) join(e *event.Event, part []byte) {
	if len(part) != event.PartSize {
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(part[event.OffUnknown+8*i:]) }
	its := p.stackCopies[e.TID]
	if at := word(4); at == 0 {
		its = &event.StackCopy{SP: word(0), FP: word(1), SavedReturn: word(2), SavedReturnSP: word(3)}
		p.stackCopies[e.TID] = its
	} else if its == nil || at != uint64(len(its.Stack)) {
		return // an earlier part was dropped, or belongs to another event
	}
	its.Stack = append(its.Stack, part[event.OffPart:]...)
}

func (*probes) Environ(env []string) []string { return env }

func (p *probes) Flush() error {
	p.waitForExecs()
	return p.reader.Flush()
}

// Lost returns the number of events that the ring buffer had no room for, and the time of the first.
func (p *probes) Lost() (count, since uint64) {
	_ = p.maps.loss.Lookup(uint32(lossCount), &count) // an array always has the key
	_ = p.maps.loss.Lookup(uint32(lossSince), &since)
	return count, since
}

// Interrupt ends the wait for events.
func (p *probes) Interrupt() {
	if p.reader != nil {
		p.reader.Close()
	}
}

// Detach removes the probes. What they wrote can still be read.
func (p *probes) Detach() {
	var all sync.WaitGroup
	for _, l := range p.attached {
		all.Go(func() { l.Close() }) // each waits for an RCU grace period: in parallel they share it
	}
	all.Wait()
	p.attached = nil
}

// Close removes everything from the kernel.
func (p *probes) Close() {
	p.Detach()
	for _, programs := range [][]*ebpf.Program{p.entryProbes, p.returnProbes, p.tracepoints, p.otherPrograms} {
		for _, prog := range programs {
			if prog != nil {
				prog.Close()
			}
		}
	}
	p.Interrupt()
	if p.execs != nil {
		p.execs.Close()
	}
	if p.maps != nil {
		p.maps.close()
	}
}

// SetPythonLayout sets the layout of a process's Python interpreter.
func (p *probes) SetPythonLayout(pid int, l python.Layout) error {
	return p.maps.setPythonLayout(pid, l, event.Now())
}

// ClearPythonLayout removes the layout of a process's Python interpreter.
func (p *probes) ClearPythonLayout(pid int) { _ = p.maps.python.Delete(uint32(pid)) }

// LoadUnwindRule loads the unwind rule of a return address.
func (p *probes) LoadUnwindRule(pid int, generation uint32, pc uint64, s unwind.CompactRule) {
	key := ruleKey{uint32(pid), generation, pc}
	if p.maps.unwindRules.Put(key, s) == nil { // without it, the stack is copied again
		p.loadedRules[pid] = append(p.loadedRules[pid], key)
	}
}

// RemoveUnwindRules removes all rules of a process.
func (p *probes) RemoveUnwindRules(pid int) {
	for _, key := range p.loadedRules[pid] {
		_ = p.maps.unwindRules.Delete(key)
	}
	delete(p.loadedRules, pid)
}

// ReadExecs reads execs until the probes are closed. The interpreter of a program must be known before
// its first call of the driver, even on a busy machine.
func (p *probes) ReadExecs(begins func(of event.Program, file string), urgent func(pid int)) {
	p.execsHandled = make(chan (<-chan struct{}))
	go func() {
		raisePriority()
		defer close(p.execsHandled)
		latest := make(chan struct{}) // closed when all execs so far are handled
		close(latest)
		for {
			record, err := p.execs.Read()
			switch {
			case errors.Is(err, ringbuf.ErrFlushed):
				p.execsHandled <- latest
				continue
			case err != nil:
				return
			}
			b := record.RawSample
			if len(b) < execSize {
				continue
			}
			its := event.Program{PID: uint32(binary.NativeEndian.Uint64(b)), Number: binary.NativeEndian.Uint64(b[8:])}
			file, _, _ := bytes.Cut(b[execSize:], []byte{0})
			before, done := latest, make(chan struct{})
			latest = done
			go func() {
				defer close(done)
				begins(its, string(file))
				<-before
			}()
			go func() {
				raisePriority()
				urgent(int(its.PID))
			}()
			p.recordExec(its)
		}
	}()
}

// waitForExecs waits until all execs so far are handled.
func (p *probes) waitForExecs() {
	if p.execsHandled == nil || p.execs.Flush() != nil {
		return
	}
	if latest := <-p.execsHandled; latest != nil { // nil if the probes are closed
		<-latest
	}
}

// recordExec reads the mappings of a process after an exec, unless its code has changed since.
func (p *probes) recordExec(of event.Program) {
	if its := event.ReadStartRecord(int(of.PID), p, uint32(of.Number)); its != nil {
		p.starts.add(of, its)
	}
}

// startRecords holds what was read of programs at their start, until the event of the start is read.
type startRecords struct {
	mu        sync.Mutex
	byProgram map[event.Program]*event.StartRecord
}

// add keeps the record of a program.
func (b *startRecords) add(of event.Program, record *event.StartRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.byProgram) >= maxStartRecords {
		clear(b.byProgram) // their events were lost
	}
	b.byProgram[of] = record
}

// take removes and returns the record of a program; nil if there is none.
func (b *startRecords) take(of event.Program) *event.StartRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := b.byProgram[of]
	delete(b.byProgram, of)
	return record
}

const maxStartRecords = 1 << 14
