package attach

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// frames returns the return addresses of an event's call stack, innermost first, and why the stack
// may be incomplete. Frame pointers skip the callers of functions that keep none. So a stack from
// frame pointers is compared once with a walk by the unwind tables; only if both agree are frame
// pointers believed for that stack.
func (p *process) frames(e *event) (all []uint64, end string) {
	framed := e.frames()
	if len(e.copied) == 0 {
		return framed, symbols.NoFramePointers
	}
	c := unwind.Copy{Machine: machine, Stack: e.copied}
	for i, r := range savedRegs {
		c.Registers[r.number] = e.saved[i]
	}
	atNote := p.functions[e.function].note != ""
	if atNote { // it is in the middle of a function: tables are asked for the place before an address, as that is a return's
		c.Registers[savedRegs[0].number]++
	}
	walked, why := c.Walk(p.walked[:0], maxFrames, p.symbols.Table)
	if atNote && len(walked) > 0 {
		walked[0]--
	}
	if why == unwind.Lost || why == unwind.CopyEnds {
		walked = append(walked, c.Beyond(framed)...)
		walked = walked[:min(len(walked), maxFrames)]
	}
	p.walked = walked
	switch {
	case p.agrees(framed, walked):
		p.believe(e.hash)
		if why == unwind.Outermost {
			return framed, symbols.Whole // the missing frames can only be the C library's
		}
		return framed, symbols.NoFramePointers
	case why == unwind.Outermost:
		return walked, symbols.Whole
	case why == unwind.CopyEnds:
		return walked, symbols.TooLong
	case why == unwind.Lost && len(framed) > len(walked) && slices.Equal(framed[:len(walked)], walked):
		return framed, symbols.NoFramePointers // code without tables: frame pointers know more
	}
	return walked, symbols.NoTable
}

// agrees reports whether frame pointers found all callers. They may miss the C library's functions
// that call main or a thread's first function, and the functions of Go's runtime that switch
// stacks.
func (p *process) agrees(framed, walked []uint64) bool {
	for _, at := range walked {
		if len(framed) > 0 && framed[0] == at {
			framed = framed[1:]
		} else if !p.symbols.Starts(at) {
			return false
		}
	}
	return len(framed) == 0
}
