//go:build amd64 || arm64

package probes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// Source is the programs in the kernel, and what they write. The kernel removes them when it is closed, or
// when this process ends in any way.
type Source struct {
	functions  []event.Function
	way        way
	collection *ebpf.Collection // the programs; nil until they are loaded
	maps       programsMaps
	spec       *ebpf.CollectionSpec // for copies
	shared     map[string]*ebpf.Map // by them: maps
	copies     map[copyOf]*ebpf.Program
	notes      map[programsStaticProbe]uint32 // indexes of static probes: those of other files are often the same
	removals   uint64                         // how often rules were removed
	attached   []link.Link
	files      uint32        // number of files that were probed
	detached   atomic.Uint64 // when Detach began, by the clock of the events; 0 before

	reader      *ringbuf.Reader
	record      ringbuf.Record
	prioritized sync.Once // see raisePriority

	mappings     *mappings              // see ReadMappings; nil if they are not read
	execs        *ringbuf.Reader        // see ReadExecs
	execsHandled chan (<-chan struct{}) // see waitForExecs
	Starts       StartRecords
	loadedRules  map[int][]programsRuleKey   // by process: its keys in the map of rules
	stackCopies  map[uint32]*event.StackCopy // by thread: parts of its stack, until its event is read
}

func newSource(functions []event.Function) *Source {
	return &Source{
		functions: functions, copies: make(map[copyOf]*ebpf.Program), notes: make(map[programsStaticProbe]uint32), loadedRules: make(map[int][]programsRuleKey),
		stackCopies: make(map[uint32]*event.StackCopy),
	}
}

// Watch adds a process, and its future descendants, to the watched ones.
func (s *Source) Watch(pid int) error {
	err := s.maps.Watched.Update(uint32(pid), programsGeneration{Code: uint32(event.Now())}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

// CodeGeneration returns when code of a process was mapped last, and when some was unmapped.
func (s *Source) CodeGeneration(pid int) (generation, since uint32, ok bool) {
	var its programsGeneration
	if s.collection == nil || s.maps.Watched.Lookup(uint32(pid), &its) != nil {
		return 0, 0, false
	}
	return its.Code, its.Since, true
}

// Unwatch removes a process. Its descendants stay.
func (s *Source) Unwatch(pid int) { _ = s.maps.Watched.Delete(uint32(pid)) } // it may have ended

// WatchAll begins to report on every process of the machine. It implements event.Machine.
func (s *Source) WatchAll() (since uint64, err error) {
	since = event.Now()
	if err := s.maps.Everything.Put(uint32(0), since); err != nil {
		return 0, fmt.Errorf("watch all processes: %w", err)
	}
	return since, nil
}

// LostBy returns the number of dropped events of a process, and the time of the first.
func (s *Source) LostBy(pid int) (count, since uint64) {
	var its programsShare
	if s.collection == nil || s.maps.Shares.Lookup(uint32(pid), &its) != nil {
		return 0, 0
	}
	return its.Lost, its.Since
}

// ReadMappings reads what processes map. It implements event.Machine.
func (s *Source) ReadMappings(mapped func(event.Mapping), missed func()) error {
	m, err := openMappings()
	if err != nil {
		return err
	}
	s.mappings = m
	go m.read(mapped, missed)
	return nil
}

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
func (s *Source) Next(e *event.Event) error {
	s.prioritized.Do(raisePriority)
	for {
		switch err := s.reader.ReadInto(&s.record); {
		case err == nil:
			err := e.Decode(s.record.RawSample)
			switch {
			case err != nil:
			case e.Phase == event.StackPart:
				s.join(e, s.record.RawSample)
				continue
			case s.isLate(e):
				continue
			case e.Phase == event.Execed:
				e.Start = s.Starts.take(event.Program{PID: e.PID, Number: e.Args[0]})
			case e.Phase == event.Joined:
				e.Start = s.Starts.take(event.Program{PID: e.PID, Number: e.Args[1]})
			case e.End == event.UnknownFunction:
				e.StackCopy = s.stackCopies[e.TID]
			}
			if e.Phase == event.Exited || e.StackCopy != nil {
				delete(s.stackCopies, e.TID)
			}
			return err
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.reader.SetDeadline(time.Now().Add(pollInterval))
		case errors.Is(err, ringbuf.ErrFlushed):
			return event.ErrFlushed
		default:
			return err
		}
	}
}

// isLate reports whether an event is of after Detach began: the probes go one after the other, so that a call may be seen and the one that
// frees its memory may not. A code object of Python may belong to an earlier call.
func (s *Source) isLate(e *event.Event) bool {
	began := s.detached.Load()
	return began != 0 && e.Time > began && e.Phase != event.PythonCode
}

// join adds a part of a thread's stack to those before it.
func (s *Source) join(e *event.Event, part []byte) {
	if len(part) != event.PartSize {
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(part[event.OffUnknown+8*i:]) }
	its := s.stackCopies[e.TID]
	if at := word(4); at == 0 {
		its = &event.StackCopy{SP: word(0), FP: word(1), SavedReturn: word(2), SavedReturnSP: word(3)}
		s.stackCopies[e.TID] = its
	} else if its == nil || at != uint64(len(its.Stack)) {
		return // an earlier part was dropped, or belongs to another event
	}
	its.Stack = append(its.Stack, part[event.OffPart:]...)
}

func (*Source) Environ(env []string) []string { return env }

func (s *Source) Flush() error {
	s.waitForExecs()
	return s.reader.Flush()
}

// Lost returns the number of events that the ring buffer had no room for, and the time of the first.
func (s *Source) Lost() (count, since uint64) {
	_ = s.maps.Loss.Lookup(uint32(lostCount), &count) // an array always has the key
	_ = s.maps.Loss.Lookup(uint32(lostSince), &since)
	return count, since
}

// Indexes in the map of losses.
const (
	lostCount = iota
	lostSince
)

// Interrupt ends the wait for events.
func (s *Source) Interrupt() {
	if s.reader != nil {
		s.reader.Close()
	}
}

// Detach removes the probes. What they wrote before the call can still be read.
func (s *Source) Detach() {
	s.detached.CompareAndSwap(0, event.Now())
	if s.mappings != nil {
		s.mappings.close()
		s.mappings = nil
	}
	var all sync.WaitGroup
	for _, l := range s.attached {
		all.Go(func() { l.Close() }) // each waits for an RCU grace period: in parallel they share it
	}
	all.Wait()
	s.attached = nil
}

// Close removes everything from the kernel.
func (s *Source) Close() {
	s.Detach()
	s.Interrupt()
	if s.execs != nil {
		s.execs.Close()
	}
	for _, program := range s.copies {
		program.Close()
	}
	if s.collection != nil {
		s.collection.Close()
		s.maps.Close()
	}
}

// SetPythonLayout sets the layout of a process's Python interpreter.
func (s *Source) SetPythonLayout(pid int, l python.Layout) error {
	its, err := interpreterOf(l, event.Now())
	if err != nil {
		return err
	}
	return s.maps.Interpreters.Put(uint32(pid), its)
}

// ClearPythonLayout removes the layout of a process's Python interpreter.
func (s *Source) ClearPythonLayout(pid int) { _ = s.maps.Interpreters.Delete(uint32(pid)) }

// LoadUnwindRule loads the unwind rule of a return address.
func (s *Source) LoadUnwindRule(pid int, generation uint32, pc uint64, rule unwind.CompactRule) {
	key := programsRuleKey{Pid: uint32(pid), Generation: generation, Pc: pc}
	its := programsUnwindRule{
		Base: uint8(rule.Base), FpBase: uint8(rule.FPBase),
		CfaOffset: int32(rule.CFAOffset), ReturnOffset: int32(rule.ReturnOffset), FpOffset: int32(rule.FPOffset),
	}
	fits := int64(its.CfaOffset) == rule.CFAOffset && int64(its.ReturnOffset) == rule.ReturnOffset && int64(its.FpOffset) == rule.FPOffset
	if fits && s.maps.Rules.Put(key, its) == nil { // without it, the stack is copied again
		s.loadedRules[pid] = append(s.loadedRules[pid], key)
	}
}

// RemoveUnwindRules removes all rules of a process.
func (s *Source) RemoveUnwindRules(pid int) {
	all := s.loadedRules[pid]
	if len(all) == 0 {
		return
	}
	for _, key := range all {
		_ = s.maps.Rules.Delete(key)
	}
	delete(s.loadedRules, pid)
	s.removals++
	_ = s.maps.Changes.Put(uint32(rulesRemoved), s.removals) // an array always has the key
}

// rulesRemoved is an index in the map of changes.
const rulesRemoved = 0

// ReadExecs reads execs until the probes are closed. The interpreter of a program must be known before
// its first call of the driver, even on a busy machine.
func (s *Source) ReadExecs(begins func(of event.Program, file event.File), urgent func(pid int)) {
	s.execsHandled = make(chan (<-chan struct{}))
	go func() {
		raisePriority()
		defer close(s.execsHandled)
		latest := make(chan struct{}) // closed when all execs so far are handled
		close(latest)
		for {
			record, err := s.execs.Read()
			switch {
			case errors.Is(err, ringbuf.ErrFlushed):
				s.execsHandled <- latest
				continue
			case err != nil:
				return
			}
			b := record.RawSample
			const path = unsafe.Offsetof(programsExec{}.Path)
			if len(b) < int(path) {
				continue
			}
			word := func(at uintptr) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
			its := event.Program{PID: uint32(word(0)), Number: word(unsafe.Offsetof(programsExec{}.Generation))}
			name, _, _ := bytes.Cut(b[path:], []byte{0})
			file := event.File{Path: string(name), Inode: word(unsafe.Offsetof(programsExec{}.Inode))}
			before, done := latest, make(chan struct{})
			latest = done
			go func() {
				defer close(done)
				begins(its, file)
				<-before
			}()
			go func() {
				raisePriority()
				urgent(int(its.PID))
			}()
			s.recordExec(its)
		}
	}()
}

// waitForExecs waits until all execs so far are handled.
func (s *Source) waitForExecs() {
	if s.execsHandled == nil || s.execs.Flush() != nil {
		return
	}
	if latest := <-s.execsHandled; latest != nil { // nil if the probes are closed
		<-latest
	}
}

// recordExec reads the mappings of a process after an exec, unless its code has changed since.
func (s *Source) recordExec(of event.Program) {
	if its := event.ReadStartRecord(int(of.PID), s, uint32(of.Number)); its != nil {
		s.Starts.add(of, its)
	}
}
