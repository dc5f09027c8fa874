//go:build amd64 || arm64

package probes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// way is how probes are attached, which depends on the kernel.
type way int

const (
	many    way = iota // many probes by one link, each with a cookie that says which function it is of: since 6.6
	cookies            // one by one, with cookies: since 5.15
	copies             // one by one, without cookies: each function and static probe has a copy of its programs
)

// The ways that a kernel may have. Tests choose the older ones.
const (
	Newest     = int(many)
	Before6_6  = int(cookies)
	Before5_15 = int(copies)
)

func newestWay() way {
	if features.HaveBPFLinkUprobeMulti() == nil {
		return many
	}
	const v5_15 = 5<<16 | 15<<8
	if version, err := features.LinuxVersionCode(); err == nil && version >= v5_15 {
		return cookies
	}
	return copies
}

// New loads the programs for functions. No library is probed yet. oldest is Newest, or an older way of
// attaching that is used even if the kernel has a newer one.
func New(functions []event.Function, ringBytes, oldest int) (s *Source, err error) {
	if info, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino != initialPIDs {
			return nil, errors.New("this process does not see the machine's own process numbers: start the container with --pid=host")
		}
	}
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11; a failure shows when maps are made
	s = newSource(functions)
	defer func() {
		if err != nil {
			s.Close()
			err = explain(err)
		}
	}()
	s.way = max(newestWay(), way(oldest))
	if err := s.load(uint32(ringBytes)); err != nil {
		return s, err
	}
	if err := s.setFunctions(); err != nil {
		return s, err
	}
	if s.reader, err = ringbuf.NewReader(s.maps.Ring); err != nil {
		return s, err
	}
	s.reader.SetDeadline(time.Now().Add(pollInterval))
	if s.execs, err = ringbuf.NewReader(s.maps.Execs); err != nil {
		return s, err
	}
	return s, s.attachTracepoints()
}

// initialPIDs is the inode of the machine's own PID namespace.
const initialPIDs = 0xEFFFFFFC

// attached are the programs that are attached to functions and static probes.
var attached = []string{"enter", "leave", "note"}

// load loads the programs and the maps.
func (s *Source) load(ringBytes uint32) error {
	spec, err := loadPrograms()
	if err != nil {
		return err
	}
	spec.Maps["ring"].MaxEntries = ringBytes
	spec.Maps["functions"].MaxEntries = uint32(max(1, len(s.functions)))
	spec.Maps["rules"].MaxEntries = event.MaxUnwindRules
	for _, program := range spec.Programs {
		if s.way != many && program.Type == ebpf.Kprobe {
			program.AttachType = ebpf.AttachNone
		}
	}
	for name, value := range map[string]any{
		"ring_bytes": ringBytes, "address_bits": unwind.Native.Address(), "has_cookie": s.way != copies,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("the programs' variable %s: %w", name, err)
		}
	}
	if s.way == copies {
		s.spec = spec.Copy()
		for _, name := range attached {
			delete(spec.Programs, name)
		}
	}
	if s.collection, err = ebpf.NewCollection(spec); err != nil {
		return err
	}
	s.shared = maps.Clone(s.collection.Maps)
	return s.collection.Assign(&s.maps) // which removes them from the collection
}

// program returns the program of a name that is attached to functions or static probes. Where probes have no
// cookies, it is a copy for what it is attached to.
func (s *Source) program(name string, attachedTo uint32) (*ebpf.Program, error) {
	if s.way != copies || s.spec.Programs[name] == nil {
		return s.collection.Programs[name], nil
	}
	key := copyOf{name, attachedTo}
	if its := s.copies[key]; its != nil {
		return its, nil
	}
	spec := s.spec.Copy()
	for other := range spec.Programs {
		if other != name {
			delete(spec.Programs, other)
		}
	}
	if err := spec.Variables["attached_to"].Set(attachedTo); err != nil {
		return nil, err
	}
	shared := maps.Clone(s.shared)
	delete(shared, ".rodata") // has the variables
	for name := range shared {
		spec.Maps[name].Contents = nil
	}
	made, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, err
	}
	defer made.Close()
	s.copies[key] = made.DetachProgram(name)
	return s.copies[key], nil
}

// copyOf identifies a copy of a program.
type copyOf struct {
	program    string
	attachedTo uint32
}

// Flags of functions: see struct function in common.h.
const (
	ofLibrary = 1 << iota
	appliesAtEntry
	entryOnly
	recordsStack
	writesResult
	writesPitch
	hasDescriptor
	wakes
	nested
)

// setFunctions tells the programs what to do at the calls of each function.
func (s *Source) setFunctions() error {
	for i, f := range s.functions {
		its := programsFunction{Address: uint32(f.Address)}
		for flag, is := range map[uint32]bool{
			ofLibrary: f.Library != "", appliesAtEntry: f.Effect.AppliesAtEntry(), entryOnly: f.Effect.EntryOnly(), recordsStack: f.Effect.RecordsStack(),
			writesResult: f.WritesResult(), writesPitch: f.Effect == event.AllocatesPitched, hasDescriptor: f.Effect.UsesDescriptor(),
			wakes: f.Effect == event.MakesContext || f.Effect == event.RetainsPrimary || f.Effect == event.MakesGreen, nested: f.Effect == event.LibraryFrees,
		} {
			if is {
				its.Flags |= flag
			}
		}
		if err := s.maps.Functions.Put(uint32(i), its); err != nil {
			return err
		}
	}
	return nil
}

// attachTracepoints attaches programs to forks, execs and exits.
func (s *Source) attachTracepoints() error {
	for program, tracepoint := range map[string]string{"forked": "sched_process_fork", "execed": "sched_process_exec", "exited": "sched_process_exit"} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: s.collection.Programs[program]})
		if err != nil {
			return fmt.Errorf("%s: %w", tracepoint, err)
		}
		s.attached = append(s.attached, l)
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
