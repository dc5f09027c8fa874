package attach

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// trace returns an event's call stack. Where the probe met an address without a rule, trace continues
// by the unwind tables, and loads the rules that it finds.
func (p *process) trace(e *event.Event) (t symbols.Trace) {
	p.noteGeneration(e.Generation)
	known := e.Frames()
	switch {
	case e.End == event.NotReported:
		t = symbols.Trace{End: symbols.NoTable, FirstUncertain: symbols.NotReported}
		for i := range known {
			known[i] &= machine.Address()
		}
		if e.TotalEnd == event.Truncated {
			t.End = symbols.TooMany
		}
	case e.End == event.UnknownFunction && e.StackCopy != nil && len(known) > 0:
		last := known[len(known)-1]
		return p.continueUnwind(e, symbols.Trace{Addresses: append(p.stackBuffer[:0], p.withoutTrampoline(known[:len(known)-1])...)}, last)
	case e.End == event.UnknownFunction, e.End == event.CopyDropped:
		t.End = symbols.CopyDropped
	case e.End == event.Truncated:
		t.End = symbols.TooMany
	case len(known) > 0 && known[len(known)-1] == p.trampoline:
		t.End = symbols.AtTrampoline
	case e.End != event.Complete:
		t.End = symbols.NoTable
	}
	if t.Addresses = p.withoutTrampoline(known); t.FirstUncertain != symbols.NotReported {
		t.FirstUncertain = len(t.Addresses)
	}
	return p.adjustStaticProbe(e, t)
}

// withoutTrampoline removes the addresses of the kernel's trampoline, in place.
func (p *process) withoutTrampoline(all []uint64) []uint64 {
	if p.trampoline == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(a uint64) bool { return a == p.trampoline })
}

// continueUnwind continues a call stack from the address at which the probe stopped.
func (p *process) continueUnwind(e *event.Event, t symbols.Trace, from uint64) symbols.Trace {
	its, framed := e.StackCopy, e.Stack[e.Depth-1:e.Total]
	if its.SavedReturn != 0 && p.trampoline == 0 {
		p.trampoline = p.symbols.Trampoline()
	}
	if i := slices.Index(framed, p.trampoline); i >= 0 && its.SavedReturn != 0 {
		framed[i] = its.SavedReturn
	}
	c := unwind.Thread{
		Machine: machine, Registers: machine.Registers(from, its.SP, its.FP), Stack: its.Stack,
		Trampoline: unwind.Trampoline{Address: p.trampoline, Return: its.SavedReturn, SP: its.SavedReturnSP},
	}
	walked, why := c.Walk(t.Addresses, event.MaxFrames, p.symbols.Table, func(pc uint64, s unwind.CompactRule) {
		if _, ok := p.loadedRules[pc]; !ok && len(p.loadedRules) < maxRulesPerProcess {
			p.loadedRules[pc] = struct{}{}
			p.events.LoadUnwindRule(p.origin.PID, e.Generation, pc, s)
		}
	})
	t.FirstUncertain = len(walked)
	t.End = map[unwind.End]string{unwind.NoCaller: symbols.NoTable, unwind.BeyondCopy: symbols.BeyondCopy, unwind.AtTrampoline: symbols.AtTrampoline, unwind.TooManyFrames: symbols.TooMany}[why]
	if why == unwind.NoCaller || why == unwind.BeyondCopy {
		beyond := c.Beyond(framed)
		left := event.MaxFrames - len(walked)
		if len(beyond) > left || len(beyond) > 0 && e.TotalEnd == event.Truncated {
			t.End = symbols.TooMany
		}
		walked = append(walked, beyond[:min(left, len(beyond))]...)
	}
	p.stackBuffer, t.Addresses = walked, walked
	return p.adjustStaticProbe(e, t)
}

// adjustStaticProbe makes the innermost address of a static probe's stack look like a return address.
// It is in the middle of a function, which resolving would otherwise take for the place after a call.
func (p *process) adjustStaticProbe(e *event.Event, t symbols.Trace) symbols.Trace {
	if p.functions[e.Function].Note != "" && len(t.Addresses) > 0 {
		t.Addresses[0]--
	}
	return t
}

// Maximum number of loaded unwind rules: of all processes, and of one.
const (
	maxUnwindRules     = 1 << 16
	maxRulesPerProcess = maxUnwindRules / 2
)

// noteGeneration records the code generation of the process at an event. If it differs from that of
// the event before, a library was loaded or unloaded.
func (p *process) noteGeneration(generation uint32) {
	before := p.generation
	p.generation = generation
	if before != 0 && before != generation {
		p.events.RemoveUnwindRules(p.origin.PID)
		clear(p.loadedRules)
		p.symbols.Reload()
	} else {
		p.symbols.Recover()
	}
}

// codeUnloaded records that code may have been unmapped since a generation.
func (p *process) codeUnloaded(since uint32) {
	p.since = since
	p.symbols.CodeUnloaded()
}

// codeChanged drops what addresses meant: the process has other code there now.
func (p *process) codeChanged() {
	p.stacks.forget()
	p.events.RemoveUnwindRules(p.origin.PID)
	clear(p.loadedRules)
}
