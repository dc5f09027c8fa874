package attach

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// trace returns an event's call stack. A probe knows the functions that it was taught. Where it met another, trace
// continues with the unwind tables, and teaches the probe what it finds.
func (p *process) trace(e *event) (t symbols.Trace) {
	t.Addresses, t.Pointed = e.frames(), e.depth
	atNote := p.functions[e.function].note != "" // in the middle of a function: the probe counts as if it were the return of a call there
	defer func() {
		if atNote && len(t.Addresses) > 0 {
			t.Addresses[0]--
		}
	}()
	switch {
	case e.end == notSaid:
		t.End, t.Pointed = symbols.NoTable, symbols.Unsaid
		return t
	case e.end == whole:
		return t
	case e.copied == nil || e.depth == 0:
		t.End = symbols.NoTable
		return t
	}
	known, its := e.depth-1, e.copied
	c := unwind.Copy{Machine: machine, Registers: machine.Registers(t.Addresses[known], its.sp, its.fp), Stack: its.stack}
	walked, why := c.Walk(append(p.walked[:0], t.Addresses[:known]...), maxFrames, p.symbols.Table, func(pc uint64, s unwind.Step) {
		if _, ok := p.taught[pc]; !ok && len(p.taught) < maxTaught {
			p.taught[pc] = struct{}{}
			p.feed.teach(p.origin.PID, its.generation, pc, s)
		}
	})
	t.Pointed = len(walked)
	switch why {
	case unwind.Lost:
		t.End = symbols.NoTable
	case unwind.CopyEnds:
		t.End = symbols.TooLong
	}
	if t.End != symbols.Whole {
		walked = append(walked, c.Beyond(its.framed)...)
		walked = walked[:min(len(walked), maxFrames)]
	}
	p.walked, t.Addresses = walked, walked
	return t
}

// How many return addresses a probe can be taught: for all processes together, and for one.
const (
	maxSteps  = 1 << 16
	maxTaught = maxSteps / 2
)

// changed forgets what addresses meant: the process has other code there now.
func (p *process) changed() {
	p.stacks.forget()
	p.feed.unteach(p.origin.PID)
	clear(p.taught)
}
