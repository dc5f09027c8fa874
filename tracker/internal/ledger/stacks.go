package ledger

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Stacks interns call stacks and names them. What it keeps of a name is bounded
// by the program's code, and a number for each stack. Its methods may be called
// from any goroutine, and under no lock of the tracker.
type Stacks struct {
	Table *callstack.Table
	lines lines
	named recentStacks
}

func NewStacks(depth, max int, libraries []string) *Stacks {
	s := new(Stacks)
	s.Table = callstack.NewTable(callstack.Config{Depth: depth, Max: max, Short: s.lines.short})
	s.lines.init(s.Table, libraries)
	return s
}

// Line returns the number of an interned stack's call site, which is the one that Stack.CallSite
// chooses.
func (s *Stacks) Line(id tables.StackID) LineID { return s.lines.of(callstack.ID(id)) }

// Frame returns the call site with that number.
func (s *Stacks) Frame(line LineID) mem.Frame { return s.lines.frame(line) }

// Site returns the call site of an interned stack.
func (s *Stacks) Site(id tables.StackID) mem.Frame { return s.Frame(s.Line(id)) }

// Stack returns the frames of an interned stack; nil for 0.
func (s *Stacks) Stack(stack tables.StackID) mem.Stack {
	if stack == 0 {
		return nil
	}
	return s.frames(callstack.ID(stack))
}

func (s *Stacks) frames(id callstack.ID) mem.Stack {
	stack, ok := s.named.get(id)
	if !ok {
		stack = make(mem.Stack, 0, len(s.Table.PCs(id))+1)
		for f := range s.Table.Frames(id) {
			stack = append(stack, mem.Frame(f))
		}
		s.named.put(id, stack)
	}
	return stack
}

// recentStacks remembers the stacks that were named last: half of maxNamed at
// least. The zero value is ready to use.
type recentStacks struct {
	mu         sync.Mutex
	young, old map[callstack.ID]mem.Stack
}

const maxNamed = 1024

func (r *recentStacks) get(id callstack.ID) (mem.Stack, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stack, ok := r.young[id]
	if !ok {
		if stack, ok = r.old[id]; ok {
			r.add(id, stack)
		}
	}
	return stack, ok
}

func (r *recentStacks) put(id callstack.ID, stack mem.Stack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(id, stack)
}

func (r *recentStacks) add(id callstack.ID, stack mem.Stack) {
	if r.young == nil || len(r.young) == maxNamed/2 {
		r.young, r.old = make(map[callstack.ID]mem.Stack), r.young
	}
	r.young[id] = stack
}

// Path returns the way to an interned stack's allocation.
func (s *Stacks) Path(id tables.StackID) mem.Path {
	return s.Stack(id).Path(s.lines.libraries...)
}

// streams numbers the streams that buffers were allocated for: records and events have room
// for no handle. Numbers are not given back.
type streams struct {
	Handles []alloc.Stream // only ever appended to, so that a copy of the slice stays good
	numbers map[alloc.Stream]uint8
}

func newStreams() streams { return streams{Handles: []alloc.Stream{0}} }

// At returns the number of a stream. The streams that are too many are one.
func (s *streams) At(handle alloc.Stream) uint8 {
	if handle == 0 {
		return 0
	}
	if n, ok := s.numbers[handle]; ok {
		return n
	}
	const others = tables.MaxStreams - 1
	switch len(s.Handles) {
	case tables.MaxStreams:
		return others
	case others:
		handle = tables.OtherStreams
	}
	if s.numbers == nil {
		s.numbers = make(map[alloc.Stream]uint8)
	}
	n := uint8(len(s.Handles))
	s.Handles = append(s.Handles, handle)
	s.numbers[handle] = n
	return n
}
