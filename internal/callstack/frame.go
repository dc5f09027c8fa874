package callstack

import (
	"bytes"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Frame is one logical frame of a call stack: an inlined function has its own.
type Frame struct {
	Function string // with its package path, such as "example.com/model.(*Net).Forward"; "" if unknown
	File     string // path of the source file as compiled; "" if unknown
	Line     int    // line of the call, counted from 1; 0 if unknown
}

const (
	overflowNote = "(call stack table full)"
	cutNote      = "(call stack table full: other frames left out)"
)

// Frames yields the symbolised frames of a stack, innermost first. Overflow yields one frame that says so, and a stack that was
// cut short has one at its end; 0 yields none.
func (t *Table) Frames(id ID) iter.Seq[Frame] {
	return func(yield func(Frame) bool) {
		if id == Overflow {
			yield(Frame{Function: overflowNote})
			return
		}
		e := t.stack(id)
		if e == nil {
			return
		}
		for _, pc := range e.words {
			for _, f := range t.FramesAt(pc) {
				if !yield(f) {
					return
				}
			}
		}
		if e.cut {
			yield(Frame{Function: cutNote})
		}
	}
}

// FramesAt returns the symbolised frames at a return address that PCs gave: one, except for C code, which may have none or
// several. The table remembers them, which is bounded by the program's code. The slice is shared and must not be written to.
func (t *Table) FramesAt(pc uintptr) []Frame { return t.symbols.at(pc).frames }

func frame(f runtime.Frame) Frame {
	return Frame{Function: f.Function, File: f.File, Line: f.Line}
}

// symbols caches the names of addresses. A program has far fewer call sites than distinct stacks, so that it
// stays small. The zero value is ready to use.
type symbols struct {
	mu    sync.Mutex
	known map[uintptr]*symbol
}

// symbol has the names of an address that [runtime.Callers] gave. It never changes.
type symbol struct {
	frames  []Frame // one, except for C code, which may have none or several
	entry   uintptr // of the function that has the code
	inlined bool    // into that function
	foreign bool    // runtime code through which signals and C code enter
}

func (s *symbols) at(pc uintptr) *symbol {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[pc]
	if !ok {
		known = symbolAt(pc)
		if s.known == nil {
			s.known = make(map[uintptr]*symbol)
		}
		s.known[pc] = known
	}
	return known
}

func symbolAt(pc uintptr) *symbol {
	frames := runtime.CallersFrames([]uintptr{pc})
	f, more := frames.Next()
	s := &symbol{
		entry:   f.Entry,
		inlined: f.Func == nil,
		foreign: f.Function == "runtime.sigpanic" || strings.HasPrefix(f.Function, "runtime.cgocallback"),
	}
	for f.PC != 0 {
		s.frames = append(s.frames, frame(f))
		if !more {
			break
		}
		f, more = frames.Next()
	}
	return s
}

// tracedGoroutine reads the number of the calling goroutine from the first line of its trace, "goroutine 18
// [running]:". The runtime gives it nowhere else.
func tracedGoroutine() uint64 {
	var buf [64]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(line, []byte(" "))
	number, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("callstack: runtime.Stack names no goroutine: " + string(line))
	}
	return number
}
