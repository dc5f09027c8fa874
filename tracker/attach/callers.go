package attach

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// trace returns an event's call stack. A probe knows the functions that it was taught. Where it met another, trace
// continues with the unwind tables, and teaches the probe what it finds.
func (p *process) trace(e *event) (t symbols.Trace) {
	p.at(e.generation)
	known := e.frames()
	switch {
	case e.end == notSaid:
		t = symbols.Trace{End: symbols.NoTable, Pointed: symbols.Unsaid}
		for i := range known {
			known[i] &= machine.Address()
		}
		if e.beyond == isMore {
			t.End = symbols.TooMany
		}
	case e.end == isUnknown && e.copied != nil && len(known) > 0:
		last := known[len(known)-1]
		return p.walk(e, symbols.Trace{Addresses: append(p.walked[:0], p.shown(known[:len(known)-1])...)}, last)
	case e.end == isUnknown, e.end == isLeftOut:
		t.End = symbols.TooFast
	case e.end == isMore:
		t.End = symbols.TooMany
	case len(known) > 0 && known[len(known)-1] == p.trampoline:
		t.End = symbols.Hidden
	case e.end != whole:
		t.End = symbols.NoTable
	}
	if t.Addresses = p.shown(known); t.Pointed != symbols.Unsaid {
		t.Pointed = len(t.Addresses)
	}
	return p.atCall(e, t)
}

// shown returns the addresses that are not of the kernel's trampoline, in place.
func (p *process) shown(all []uint64) []uint64 {
	if p.trampoline == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(a uint64) bool { return a == p.trampoline })
}

// walk continues a call stack from the address at which a probe knew no more.
func (p *process) walk(e *event, t symbols.Trace, from uint64) symbols.Trace {
	its, framed := e.copied, e.stack[e.depth-1:e.total]
	if its.kept != 0 && p.trampoline == 0 {
		p.trampoline = p.symbols.Trampoline()
	}
	if i := slices.Index(framed, p.trampoline); i >= 0 && its.kept != 0 {
		framed[i] = its.kept
	}
	c := unwind.Copy{
		Machine: machine, Registers: machine.Registers(from, its.sp, its.fp), Stack: its.stack,
		Hidden: unwind.Hidden{Behind: p.trampoline, Return: its.kept, SP: its.keptAt},
	}
	walked, why := c.Walk(t.Addresses, maxFrames, p.symbols.Table, func(pc uint64, s unwind.Step) {
		if _, ok := p.taught[pc]; !ok && len(p.taught) < maxTaught {
			p.taught[pc] = struct{}{}
			p.feed.teach(p.origin.PID, e.generation, pc, s)
		}
	})
	t.Pointed = len(walked)
	t.End = map[unwind.End]string{unwind.Lost: symbols.NoTable, unwind.CopyEnds: symbols.TooLong, unwind.IsHidden: symbols.Hidden, unwind.Full: symbols.TooMany}[why]
	if why == unwind.Lost || why == unwind.CopyEnds {
		beyond := c.Beyond(framed)
		room := maxFrames - len(walked)
		if len(beyond) > room || len(beyond) > 0 && e.beyond == isMore {
			t.End = symbols.TooMany
		}
		walked = append(walked, beyond[:min(room, len(beyond))]...)
	}
	p.walked, t.Addresses = walked, walked
	return p.atCall(e, t)
}

// atCall returns the stack of a static probe as if it were the return of a call: it is in the middle of a function.
func (p *process) atCall(e *event, t symbols.Trace) symbols.Trace {
	if p.functions[e.function].note != "" && len(t.Addresses) > 0 {
		t.Addresses[0]--
	}
	return t
}

// How many return addresses a probe can be taught: for all processes together, and for one.
const (
	maxSteps  = 1 << 16
	maxTaught = maxSteps / 2
)

// at notes the generation of the process at an event. With another than at the event before, a library was loaded or has gone.
func (p *process) at(generation uint32) {
	before := p.generation
	p.generation = generation
	if before != 0 && before != generation {
		p.feed.unteach(p.origin.PID)
		clear(p.taught)
		p.symbols.Reload()
	} else {
		p.symbols.Recover()
	}
}

// unlinked notes that code may have gone since a generation.
func (p *process) unlinked(since uint32) {
	p.since = since
	p.symbols.Unlinked()
}

// changed forgets what addresses meant: the process has other code there now.
func (p *process) changed() {
	p.stacks.forget()
	p.feed.unteach(p.origin.PID)
	clear(p.taught)
}
