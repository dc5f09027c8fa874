//go:build gc && (amd64 || arm64) && !nofp

package callstack

import "slices"

// The stack of most new keys follows from stacks that were seen before, without runtime.Callers. A return address that a walk
// finds stands for a run of logical frames: those inlined around the call, and the function that has the code. Which they are,
// and whether the walk meets the next physical frame, depends only on the code at that address; see determines. So once a stack
// has shown both of an address, they hold in every stack. The run of a compiler's wrapper is empty.

// learnRuns keeps the runs of a walk that determines a stack. whole says that the walk has reached the goroutine's first frame.
func (s *symbols) learnRuns(walked, stack []uintptr, whole bool) {
	walked = walked[slices.Index(walked, stack[0]):]
	for len(stack) > 0 {
		n, last := 1, s.at(stack[0])
		for last.inlined && n < len(stack) {
			next := s.at(stack[n])
			if next.entry != last.entry {
				break
			}
			n, last = n+1, next
		}
		run := stack[:n]
		stack = stack[n:]
		behind := 1 // the next frame, in the walk
		if len(stack) > 0 {
			behind += slices.Index(walked[1:], stack[0])
		} else if last.inlined || behind < len(walked) || !whole {
			return // the walk may go on as it likes
		}
		s.at(run[0]).know(run)
		for _, wrapper := range walked[1:behind] {
			s.at(wrapper).know(nil)
		}
		walked = walked[behind:]
	}
}

// know keeps a copy of a run.
func (s *symbol) know(run []uintptr) {
	if s.run.Load() == nil {
		kept := slices.Clone(run)
		s.run.Store(&kept)
	}
}

// expand writes the stack of a walk to stack, if all that it needs are runs that are known. Then n is how many frames that are:
// len(stack), or fewer if the goroutine has no more.
func (s *symbols) expand(walked []uintptr, whole bool, stack []uintptr) (n int, ok bool) {
	t := s.known.Load()
	if t == nil || len(walked) == 0 {
		return 0, false
	}
	for _, pc := range walked {
		known := t.slot(pc).Load()
		if known == nil {
			return 0, false
		}
		run := known.run.Load()
		if run == nil {
			return 0, false
		}
		if n += copy(stack[n:], *run); n == len(stack) {
			return n, true
		}
	}
	return n, whole
}
