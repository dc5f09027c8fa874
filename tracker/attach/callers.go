package attach

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// frames returns the return addresses of an event's call stack, innermost first, and why the stack
// may be incomplete. A probe knows the functions that it was taught. Where it met another, frames
// continues with the unwind tables, and teaches the probe what it finds.
func (p *process) frames(e *event) (all []uint64, end string) {
	all = e.frames()
	atNote := p.functions[e.function].note != "" // in the middle of a function: the probe counts as if it were the return of a call there
	defer func() {
		if atNote && len(all) > 0 {
			all[0]--
		}
	}()
	switch {
	case e.end == whole:
		return all, symbols.Whole
	case e.copied == nil || len(all) == 0:
		return all, symbols.NoTable
	}
	known, its := len(all)-1, e.copied
	c := unwind.Copy{Machine: machine, Registers: machine.Registers(all[known], its.sp, its.fp), Stack: its.stack}
	walked, why := c.Walk(append(p.walked[:0], all[:known]...), maxFrames, p.symbols.Table, func(pc uint64, s unwind.Step) {
		if _, ok := p.taught[pc]; !ok && len(p.taught) < maxTaught {
			p.taught[pc] = struct{}{}
			p.feed.teach(p.origin.PID, its.generation, pc, s)
		}
	})
	if why == unwind.Lost || why == unwind.CopyEnds {
		walked = append(walked, c.Beyond(its.framed)...)
		walked = walked[:min(len(walked), maxFrames)]
	}
	p.walked = walked
	switch why {
	case unwind.Outermost:
		return walked, symbols.Whole
	case unwind.CopyEnds:
		return walked, symbols.TooLong
	}
	return walked, symbols.NoTable
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
