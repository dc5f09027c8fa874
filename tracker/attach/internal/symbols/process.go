package symbols

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Process names the call stacks of one process, whatever program it runs. One goroutine at a time may use
// it; any may use its Stacks.
type Process struct {
	pid         int
	events      event.Source
	pythons     *python.Processes
	stacks      *StackTable
	symbols     *Symbolizer
	stackBuffer []uint64            // reused for call stacks
	keyBuffer   []uint64            // reused for keys of stacks with frames of Python
	generation  uint32              // code generation at the latest event; 0 before the first
	since       uint32              // no code was unmapped since this generation
	unmapped    bool                // code may have been unmapped since the program started
	mapsAt      uint32              // code generation before the mappings were read last
	loadedRules map[uint64]struct{} // return addresses with a loaded rule
	trampoline  uint64              // see Symbolizer.Trampoline; 0 if none is known
}

// NewProcess returns a Process that runs the program of a start record, and keeps at most maxStacks
// different stacks.
func NewProcess(pid int, start event.StartRecord, from event.Source, pythons *python.Processes, maxStacks int) *Process {
	p := &Process{
		pid: pid, events: from, pythons: pythons,
		stacks: &StackTable{max: maxStacks},
	}
	p.Exec(start)
	return p
}

// Exec drops all but the stacks: the process runs another program.
func (p *Process) Exec(start event.StartRecord) {
	p.since, p.generation, p.unmapped, p.mapsAt = start.Since, 0, false, 0
	p.loadedRules, p.trampoline = make(map[uint64]struct{}), 0
	p.codeChanged()
	p.symbols = New(p.pid, event.MaxFrames, start.Maps, p.maps, p.codeChanged)
}

// Stacks returns the table of the stacks that were seen.
func (p *Process) Stacks() *StackTable { return p.stacks }

// Maps returns the mappings that are known.
func (p *Process) Maps() procfs.Maps { return p.symbols.Maps() }

// CodeLoaded sets the mappings of a process that has loaded more code.
func (p *Process) CodeLoaded(now []procfs.Mapping) { p.symbols.Update(now) }

// Stack returns the ID of an event's call stack. It may read files.
func (p *Process) Stack(e *event.Event, f event.Function) tables.StackID {
	return p.stack(p.trace(e, f), e.Python)
}

// stack returns the ID of a call stack. In its key, Python frames follow the native ones after a 0,
// which is no return address.
func (p *Process) stack(t Trace, words []uint64) tables.StackID {
	if len(words) == 0 {
		return p.stacks.add(t.Addresses, func() mem.Stack { return p.symbols.Resolve(t, nil) })
	}
	its := p.python()
	if its != nil {
		its.Number(words)
	}
	p.keyBuffer = append(append(append(p.keyBuffer[:0], t.Addresses...), 0), words...)
	return p.stacks.add(p.keyBuffer, func() mem.Stack {
		if its == nil {
			return p.symbols.Resolve(t, nil)
		}
		python := Python{Image: its.Image, Runs: its.Runs(words), Rest: "(functions of another interpreter of Python)"}
		if len(words) == 2*event.MaxPython {
			more := mem.Frame{Function: fmt.Sprintf("(more than %d frames of Python: the others are left out)", event.MaxPython)}
			python.Runs, python.Rest = append(python.Runs, []mem.Frame{more}), ""
		}
		return p.symbols.Resolve(t, &python)
	})
}

// python returns the process's interpreter of Python; nil if there is none, or its memory cannot be
// read.
func (p *Process) python() *python.Process {
	if its := p.pythons.Get(p.pid); its != nil {
		if its.Image == "" {
			its.Image = p.symbols.Path(its.CodeAddress)
		}
		return its
	}
	at := time.Now()
	if mappings, err := procfs.ReadMaps(p.pid); err == nil {
		p.pythons.Detect(p.pid, mappings, at) // the preloaded library reported it before the first scan
	}
	return p.pythons.Get(p.pid)
}

// maps returns the mappings of the process; nil if code was unmapped since the current event.
func (p *Process) maps() []procfs.Mapping {
	generation, _, _ := p.events.CodeGeneration(p.pid)
	if !p.CodeUnchanged() {
		return nil
	}
	now, err := procfs.ReadMaps(p.pid)
	if err != nil || !p.CodeUnchanged() {
		return nil
	}
	p.mapsAt = generation
	return now
}

// CodeUnchanged reports whether no code of the process was unmapped since the current event. More may
// have been mapped.
func (p *Process) CodeUnchanged() bool {
	generation, since, ok := p.events.CodeGeneration(p.pid)
	return ok && (since == p.since || generation == p.generation)
}

// trace returns an event's call stack. Where the probe met an address without a rule, trace continues
// by the unwind tables, and loads the rules that it finds.
func (p *Process) trace(e *event.Event, f event.Function) (t Trace) {
	p.noteGeneration(e.Generation)
	known := e.Frames()
	switch {
	case e.End == event.NotReported:
		t = Trace{End: NoTable, FirstUncertain: NotReported}
		for i := range known {
			known[i] &= unwind.Native.Address()
		}
		if e.TotalEnd == event.Truncated {
			t.End = TooMany
		}
	case e.End == event.UnknownFunction && e.StackCopy != nil && len(known) > 0:
		last := known[len(known)-1]
		return p.continueUnwind(e, f, Trace{Addresses: append(p.stackBuffer[:0], p.withoutTrampoline(known[:len(known)-1])...)}, last)
	case e.End == event.UnknownFunction, e.End == event.CopyDropped:
		t.End = CopyDropped
	case e.End == event.Truncated:
		t.End = TooMany
	case len(known) > 0 && known[len(known)-1] == p.trampoline:
		t.End = AtTrampoline
	case e.End != event.Complete:
		t.End = NoTable
	}
	if t.Addresses = p.withoutTrampoline(known); t.FirstUncertain != NotReported {
		t.FirstUncertain = len(t.Addresses)
	}
	return adjustStaticProbe(f, t)
}

// withoutTrampoline removes the addresses of the kernel's trampoline, in place.
func (p *Process) withoutTrampoline(all []uint64) []uint64 {
	if p.trampoline == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(a uint64) bool { return a == p.trampoline })
}

// continueUnwind continues a call stack from the address at which the probe stopped.
func (p *Process) continueUnwind(e *event.Event, f event.Function, t Trace, from uint64) Trace {
	its, framed := e.StackCopy, e.Stack[e.Depth-1:e.Total]
	if its.SavedReturn != 0 && p.trampoline == 0 {
		p.trampoline = p.symbols.Trampoline()
	}
	if i := slices.Index(framed, p.trampoline); i >= 0 && its.SavedReturn != 0 {
		framed[i] = its.SavedReturn
	}
	c := unwind.Thread{
		Machine: unwind.Native, Registers: unwind.Native.Registers(from, its.SP, its.FP), Stack: its.Stack,
		Trampoline: unwind.Trampoline{Address: p.trampoline, Return: its.SavedReturn, SP: its.SavedReturnSP},
	}
	walked, why := c.Walk(t.Addresses, event.MaxFrames, p.symbols.Table, func(pc uint64, s unwind.CompactRule) {
		if _, ok := p.loadedRules[pc]; !ok && len(p.loadedRules) < event.MaxUnwindRules/2 {
			p.loadedRules[pc] = struct{}{}
			p.events.LoadUnwindRule(p.pid, e.Generation, pc, s)
		}
	})
	t.FirstUncertain = len(walked)
	t.End = map[unwind.End]string{unwind.NoCaller: NoTable, unwind.BeyondCopy: BeyondCopy, unwind.AtTrampoline: AtTrampoline, unwind.TooManyFrames: TooMany}[why]
	if why == unwind.NoCaller || why == unwind.BeyondCopy {
		beyond := c.Beyond(framed)
		left := event.MaxFrames - len(walked)
		if len(beyond) > left || len(beyond) > 0 && e.TotalEnd == event.Truncated {
			t.End = TooMany
		}
		walked = append(walked, beyond[:min(left, len(beyond))]...)
	}
	p.stackBuffer, t.Addresses = walked, walked
	return adjustStaticProbe(f, t)
}

// adjustStaticProbe makes the innermost address of a static probe's stack look like a return address.
// It is in the middle of a function, which resolving would otherwise take for the place after a call.
func adjustStaticProbe(f event.Function, t Trace) Trace {
	if f.Note != "" && len(t.Addresses) > 0 {
		t.Addresses[0]--
	}
	return t
}

// noteGeneration records the code generation of the process at an event. If it differs from that of
// the event before, a library was loaded or unloaded.
//
// Mappings that were read while a library was being unloaded still have it. They hold for events of that
// generation, and not for code that was mapped later, perhaps at its address.
func (p *Process) noteGeneration(generation uint32) {
	before := p.generation
	p.generation = generation
	if before != 0 && before != generation {
		p.events.RemoveUnwindRules(p.pid)
		clear(p.loadedRules)
		if !p.symbols.Reload() && p.unmapped && generation != p.mapsAt {
			p.symbols.KeepLinked()
		}
	} else {
		p.symbols.Recover()
	}
}

// CodeUnloaded records that code may have been unmapped since a generation.
func (p *Process) CodeUnloaded(since uint32) {
	p.since, p.unmapped = since, true
	p.symbols.CodeUnloaded()
}

// codeChanged drops what addresses meant: the process has other code there now.
func (p *Process) codeChanged() {
	p.stacks.forget()
	p.events.RemoveUnwindRules(p.pid)
	clear(p.loadedRules)
}
