package callstack

import (
	"iter"
	"runtime"
	"sync"
)

// Frame is one logical frame of a call stack: an inlined function has its own.
type Frame struct {
	Function string // with its package path, such as "example.com/model.(*Net).Forward"; "" if unknown
	File     string // path of the source file as compiled; "" if unknown
	Line     int    // line of the call, counted from 1; 0 if unknown
}

// Frames yields the symbolised frames of a stack, innermost first. Overflow yields one frame that says so; 0 yields none.
func (t *Table) Frames(id ID) iter.Seq[Frame] {
	return func(yield func(Frame) bool) {
		if id == Overflow {
			yield(Frame{Function: "(call stack table full)"})
			return
		}
		for _, pc := range t.PCs(id) {
			for _, f := range t.FramesAt(pc) {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// FramesAt returns the symbolised frames at a return address that PCs gave: one, except for C code, which may have none or
// several. The table remembers them, which is bounded by the program's code. The slice is shared and must not be written to.
func (t *Table) FramesAt(pc uintptr) []Frame { return t.symbols.of(pc) }

// Caller returns one frame of the calling goroutine's stack: for skip 0 the call to Caller itself, for skip 1 the call to the
// function that does so, and so on, as [runtime.Caller]. It is the zero Frame if there are not that many.
func Caller(skip int) Frame {
	var pcs [1]uintptr
	if runtime.Callers(max(skip, 0)+2, pcs[:]) == 0 {
		return Frame{}
	}
	return frame(frameAt(pcs[0]))
}

// frameAt symbolises one address that [runtime.Callers] gave, which stands for one logical frame.
func frameAt(pc uintptr) runtime.Frame {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return f
}

func frame(f runtime.Frame) Frame {
	return Frame{Function: f.Function, File: f.File, Line: f.Line}
}

// symbols remembers the frames of addresses. Programs have few call sites next to the stacks that run through them, so that it
// stays small. The zero value is ready to use.
type symbols struct {
	mu    sync.Mutex
	known map[uintptr][]Frame
}

func (s *symbols) of(pc uintptr) []Frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.known[pc]
	if ok {
		return found
	}
	frames := runtime.CallersFrames([]uintptr{pc})
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.PC != 0 {
			found = append(found, frame(f))
		}
	}
	if s.known == nil {
		s.known = make(map[uintptr][]Frame)
	}
	s.known[pc] = found
	return found
}
