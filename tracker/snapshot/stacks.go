package snapshot

import "slices"

// StackID numbers the stacks of one source. 0 is an unknown stack.
type StackID uint32

// Stacks returns the stacks of a source by their numbers. Its methods may be called from any
// goroutine.
type Stacks interface {
	Stack(StackID) Stack // shared: do not write to it
	Site(StackID) Frame  // the line of the user's code in it
	Path(StackID) Path   // the calls of the user's code in it
}

// StackTable is the Stacks of a source that has all of them in memory, such as a file. Its
// zero value is empty. Add is for one goroutine at a time, before others read.
type StackTable struct {
	stacks []Stack // the ID is the index plus one
	sites  []Frame
}

// Add adds a stack and the line of the user's code in it, which may be the zero Frame. Do not
// write to the stack afterwards.
func (t *StackTable) Add(stack Stack, site Frame) StackID {
	t.stacks, t.sites = append(t.stacks, stack), append(t.sites, site)
	return StackID(len(t.stacks))
}

// Len returns the number of stacks: the largest ID.
func (t *StackTable) Len() int { return len(t.stacks) }

// Stack implements Stacks.
func (t *StackTable) Stack(id StackID) Stack {
	if id == 0 {
		return nil
	}
	return t.stacks[id-1]
}

// Site implements Stacks.
func (t *StackTable) Site(id StackID) Frame {
	if id == 0 {
		return Frame{}
	}
	return t.sites[id-1]
}

// Path implements Stacks. Frames below the site are skipped.
func (t *StackTable) Path(id StackID) Path {
	p := t.Stack(id).Path()
	return p[max(0, slices.Index(p, t.Site(id))):]
}
