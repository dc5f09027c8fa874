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

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// probes are the programs in the kernel and what they write. The kernel removes them when they are
// closed, or when this process ends in any way.
type probes struct {
	maps   *bpf
	reader *ringbuf.Reader
	record ringbuf.Record

	ahead sync.Once // see beUrgent

	soonGone *ringbuf.Reader        // see readSoonGone
	looked   chan (<-chan struct{}) // see look
	pythons  *python.Processes
	births   births
	taught   map[int][]stepKey  // by process: what is in the map of steps
	parts    map[uint32]*copied // by thread: what is copied of its stack, until its event comes

	attach          ebpf.AttachType
	multi           bool // the kernel (6.6 and newer) takes many probes at once, and takes them away faster
	functions       []function
	entries, leaves []*ebpf.Program // by index in functions; nil if there is none
	more            []*ebpf.Program // programs that run at the end of others, and those of static probes
	links, unlinks  *ebpf.Program   // two of these; nil before a library that has dlopen is found
	tracepoints     []*ebpf.Program
	attached        []link.Link
}

// newProbes loads the programs. No library is probed yet.
func newProbes(cfg Config, functions []function) (p *probes, err error) {
	if info, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino != initialPIDs {
			return nil, errors.New("this process does not see the machine's own process numbers: start the container with --pid=host")
		}
	}
	_ = rlimit.RemoveMemlock() // kernels from 5.11 on need no more; others say so below
	p = &probes{functions: functions, taught: make(map[int][]stepKey), parts: make(map[uint32]*copied), births: births{of: make(map[program]*birth)}}
	defer func() {
		if err != nil {
			p.close()
			err = explain(err)
		}
	}()
	if p.maps, err = newMaps(cfg.RingBytes, len(functions)); err != nil {
		return p, err
	}
	if p.reader, err = ringbuf.NewReader(p.maps.ring); err != nil {
		return p, err
	}
	if p.soonGone, err = ringbuf.NewReader(p.maps.soonGone); err != nil {
		return p, err
	}
	if p.multi = !cfg.single && features.HaveBPFLinkUprobeMulti() == nil; p.multi {
		p.attach = ebpf.AttachTraceUprobeMulti
	}
	p.reader.SetDeadline(time.Now().Add(lookEvery))
	if err := p.follow(followStack, p.maps.followStack()); err != nil {
		return p, err
	}
	if err := p.follow(followPython, p.maps.followPython()); err != nil {
		return p, err
	}
	if err := p.follow(copyCode, p.maps.copyCode()); err != nil {
		return p, err
	}
	p.entries, p.leaves = make([]*ebpf.Program, len(functions)), make([]*ebpf.Program, len(functions))
	for i, f := range functions {
		if f.effect.stacked() {
			if err := p.follow(followers+i, p.maps.stacked(i, f)); err != nil {
				return p, err
			}
		}
		if f.note != "" { // where static probes are, only the files tell
			continue
		}
		if p.entries[i], err = load(ebpf.Kprobe, p.attach, p.maps.entry(i, f)); err != nil {
			return p, err
		}
		if f.effect.entryOnly() {
			continue
		}
		if p.leaves[i], err = load(ebpf.Kprobe, p.attach, p.maps.leave(i, f)); err != nil {
			return p, err
		}
	}
	return p, p.followProcesses()
}

// follow loads a program that others end by.
func (p *probes) follow(number int, ins asm.Instructions) error {
	prog, err := load(ebpf.Kprobe, p.attach, ins)
	if err != nil {
		return err
	}
	p.more = append(p.more, prog)
	return p.maps.follow.Put(uint32(number), prog)
}

// initialPIDs is the inode of the machine's own PID namespace.
const initialPIDs = 0xEFFFFFFC

func load(kind ebpf.ProgramType, attach ebpf.AttachType, ins asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "gpumemtrack", Type: kind, AttachType: attach, Instructions: ins, License: "GPL"})
}

// followProcesses has the kernel tell of forks, execs and exits.
func (p *probes) followProcesses() error {
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

// explain adds to an error of the kernel what to do.
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

// lacking names the capabilities that this process needs and has not.
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

// watch adds a process, and all that it will start, to the watched ones.
func (p *probes) watch(pid int) error {
	err := p.maps.family.Update(uint32(pid), [2]uint32{uint32(monotonic())}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

func (p *probes) code(pid int) (generation, since uint32, ok bool) {
	var value [2]uint32
	if p.maps == nil || p.maps.family.Lookup(uint32(pid), &value) != nil {
		return 0, 0, false
	}
	return value[0], value[1], true
}

// forget removes a process; those that it started stay.
func (p *probes) forget(pid int) { p.maps.family.Delete(uint32(pid)) }

// beUrgent gives a goroutine a thread of its own that is ahead of others: among hundreds of threads that only allocate, it would else fall
// behind. The thread ends with the goroutine.
func beUrgent() {
	const most = -20
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, most) // of this thread
}

// lookEvery is how long an event may wait until it is read.
const lookEvery = 10 * time.Millisecond

// next waits for an event. The error is os.ErrClosed after close, and errFlushed when all
// that was there at a flush has been read.
func (p *probes) next(e *event) error {
	p.ahead.Do(beUrgent)
	for {
		switch err := p.reader.ReadInto(&p.record); {
		case err == nil:
			err := e.read(p.record.RawSample)
			switch {
			case err != nil:
			case e.phase == copies:
				p.join(e, p.record.RawSample)
				continue
			case e.phase == said:
				p.pythons.Learn(int(e.pid), p.record.RawSample)
				continue
			case e.phase == execed:
				e.program = p.births.take(program{e.pid, e.args[0]})
			case e.end == isUnknown:
				e.copied = p.parts[e.tid]
			}
			if e.phase == exited || e.copied != nil {
				delete(p.parts, e.tid)
			}
			return err
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.reader.SetDeadline(time.Now().Add(lookEvery))
		case errors.Is(err, ringbuf.ErrFlushed):
			return errFlushed
		default:
			return err
		}
	}
}

// join adds a part of a thread's stack to those before it.
func (p *probes) join(e *event, part []byte) {
	if len(part) != partSize {
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(part[offUnknown+8*i:]) }
	its := p.parts[e.tid]
	if at := word(4); at == 0 {
		its = &copied{sp: word(0), fp: word(1), kept: word(2), keptAt: word(3)}
		p.parts[e.tid] = its
	} else if its == nil || at != uint64(len(its.stack)) {
		return // an earlier part was lost, or is of another event
	}
	its.stack = append(its.stack, part[offPart:]...)
}

func (*probes) environ(env []string) []string { return env }

func (p *probes) flush() error {
	p.look()
	return p.reader.Flush()
}

// lost returns how many events found no room in the ring, and when the first was.
func (p *probes) lost() (count, since uint64) {
	p.maps.loss.Lookup(uint32(lossCount), &count)
	p.maps.loss.Lookup(uint32(lossSince), &since)
	return count, since
}

// interrupt ends the wait for events.
func (p *probes) interrupt() {
	if p.reader != nil {
		p.reader.Close()
	}
}

// detach removes the probes. What they wrote can still be read.
func (p *probes) detach() {
	var all sync.WaitGroup
	for _, l := range p.attached {
		all.Go(func() { l.Close() }) // each waits for the kernel's other processors: together they wait once
	}
	all.Wait()
	p.attached = nil
}

// close takes everything out of the kernel.
func (p *probes) close() {
	p.detach()
	for _, programs := range [][]*ebpf.Program{p.entries, p.leaves, p.tracepoints, p.more} {
		for _, prog := range programs {
			if prog != nil {
				prog.Close()
			}
		}
	}
	p.interrupt()
	if p.soonGone != nil {
		p.soonGone.Close()
	}
	if p.maps != nil {
		p.maps.close()
	}
}

// monotonic returns the clock of the events, in ns.
func monotonic() uint64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return uint64(now.Nano())
}

// runs tells the programs what a process's interpreter is like.
func (p *probes) runs(pid int, l python.Layout) error { return p.maps.runs(pid, l, monotonic()) }

// runsOther forgets a process's interpreter.
func (p *probes) runsOther(pid int) { _ = p.maps.python.Delete(uint32(pid)) }

// teach says how to get from the frame with a return address to its caller.
func (p *probes) teach(pid int, generation uint32, pc uint64, s unwind.Step) {
	key := stepKey{uint32(pid), generation, pc}
	if p.maps.steps.Put(key, s) == nil { // without it, the stack is copied again
		p.taught[pid] = append(p.taught[pid], key)
	}
}

// unteach forgets everything that was taught of a process.
func (p *probes) unteach(pid int) {
	for _, key := range p.taught[pid] {
		_ = p.maps.steps.Delete(key)
	}
	delete(p.taught, pid)
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
