package tables

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// CompareFrames orders frames by file, line and function.
func CompareFrames(x, y mem.Frame) int {
	return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Function, y.Function))
}

// StackID numbers the stacks of one source. 0 is an unknown stack.
type StackID uint32

// Stacks returns the stacks of a source by their numbers. Its methods may be called from any
// goroutine.
type Stacks interface {
	Stack(StackID) mem.Stack // shared: do not write to it
	Site(StackID) mem.Frame  // the stack's call site
	Path(StackID) mem.Path   // the calls of the user's code in the stack
}

// StackTable is the Stacks of a source that has all of them in memory, such as a file. Its
// zero value is empty. Add is for one goroutine at a time, before others read.
type StackTable struct {
	Stacks []mem.Stack // the ID is the index plus one
	Sites  []mem.Frame
}

// Add adds a stack and its call site, which may be the zero Frame. Do not write to the stack
// afterwards.
func (t *StackTable) Add(stack mem.Stack, site mem.Frame) StackID {
	t.Stacks, t.Sites = append(t.Stacks, stack), append(t.Sites, site)
	return StackID(len(t.Stacks))
}

// Len returns the number of stacks: the largest ID.
func (t *StackTable) Len() int { return len(t.Stacks) }

// Stack implements Stacks.
func (t *StackTable) Stack(id StackID) mem.Stack {
	if id == 0 {
		return nil
	}
	return t.Stacks[id-1]
}

// Site implements Stacks.
func (t *StackTable) Site(id StackID) mem.Frame {
	if id == 0 {
		return mem.Frame{}
	}
	return t.Sites[id-1]
}

// Path returns the user's calls, from the call site outward: frames below the call site are
// skipped.
func (t *StackTable) Path(id StackID) mem.Path {
	p := t.Stack(id).Path()
	return p[max(0, slices.Index(p, t.Site(id))):]
}

// Numbers numbers keys in the order in which they are first asked for.
type Numbers[K comparable] map[K]int

// Of returns the number of a key, and whether it is new.
func (n Numbers[K]) Of(key K) (number int, isNew bool) {
	number, known := n[key]
	if !known {
		number = len(n)
		n[key] = number
	}
	return number, !known
}
