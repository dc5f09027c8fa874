package symbols

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Trace is the return addresses of a call stack, innermost first.
type Trace struct {
	Addresses []uint64
	// Pointed is the place of the first address whose caller was found by its frame pointer alone, whatever tables there are.
	// Unsaid: tables were followed up to the first code that has none.
	Pointed int
	End     string // why there are no more
}

// Unsaid is a Trace's Pointed where the one who took the trace did not say.
const Unsaid = -1

// Why a stack may end before its outermost frame: what Resolve says of the last one.
const (
	Whole    = "" // it has all of them
	NoTable  = "(the stack ends early: %s keeps no frame pointers, and has no table of its callers)"
	TooLong  = "(the stack ends early: what lies beyond %s is further up the stack than was copied)"
	Hidden   = "(the stack ends early: a probe hides what called %s)"
	TooFast  = "(the stack ends early: calls came faster than they were read, and there was no room to keep what called %s)"
	TooMany  = "(more than %d frames: the others are left out)"
	nameless = "(the stack ends early: what called %s is code without a name)"
)

// gap is said where callers may be missing between two frames: the register has the frame pointer of a function further out.
const gap = "(callers may be missing here: %s has no table of them, and may keep no frame pointers)"

// gaps is said once after several frames without a name: code that is made at run time, as a rule.
const gaps = "(callers may be missing here and between the nameless frames before this: %s has no table of them, and may keep no frame pointers)"

// Resolve names return addresses. If the stack does not reach an outermost frame, a last frame in parentheses says why; one between
// two others says that callers may be missing there. What calls main or a thread's first function is left out. Python
// functions stand where their interpreter's frames are; if it has none, they come at the end.
func (s *Symbolizer) Resolve(t Trace, python *Python) mem.Stack {
	s.room = slices.Grow(s.room[:0], len(t.Addresses))
	all := s.room[:len(t.Addresses)]
	pointed := t.Pointed
	for i, at := range t.Addresses {
		at-- // within the call, not after it
		its := s.place(at)
		if !its.tabled && pointed == Unsaid {
			pointed = i
		}
		all[i] = code{
			frames: its.frames, native: its.frames[len(its.frames)-1],
			certain: its.tabled && (pointed == Unsaid || i < pointed) || s.framed(at),
		}
		if python == nil {
			continue
		}
		if m, ok := find(s.maps.All, at); ok {
			all[i].its = m.Path == python.Image && all[i].native.Function != "_start"
			if !m.file() && its.frames[0].File != m.Path { // what -X perf makes to call a function
				all[i].frames, all[i].certain = nil, true
			}
		}
	}
	if python == nil {
		return s.joined(all, t.End)
	}
	rest := python.replace(all)
	return append(s.joined(all, t.End), rest...)
}

// joined is the frames of all code, with what is to be said of them.
func (s *Symbolizer) joined(all []code, end string) (stack mem.Stack) {
	full := end == TooMany && len(all) > 0
	if full { // what calls main is no frame that is missing
		last := all[len(all)-1].native
		full = last.Function != "main" && !starts(last)
	}
	trimmed, started := false, false
	for !full && len(all) > 1 && strings.HasPrefix(all[len(all)-1].native.Function, "0x") {
		all, trimmed = all[:len(all)-1], true
	}
	if n := len(all); !full && n > 2 && strings.HasPrefix(all[n-2].native.Function, "__libc_start_main") { // from _start, which may have no name
		all = all[:n-1]
	}
	for !full && len(all) > 1 && starts(all[len(all)-1].native) {
		all, started = all[:len(all)-1], true
	}
	size := 0
	for _, its := range all {
		size += len(its.frames)
	}
	stack = make(mem.Stack, 0, size)
	text := gap
	for i, its := range all {
		stack = append(stack, its.frames...)
		switch {
		case !mayMiss(all, i):
		case mayMiss(all, i+1) && unnamed(its.native) && unnamed(all[i+1].native) && its.native.File == all[i+1].native.File:
			text = gaps // the next one says it for both
		default:
			stack, text = append(stack, note(text, its.native)), gap
		}
	}
	if full {
		return append(stack, mem.Frame{Function: fmt.Sprintf(TooMany, s.most)})
	}
	if len(stack) == 0 || started || outermost(stack[len(stack)-1]) {
		return stack
	}
	switch last := all[len(all)-1]; {
	case end != Whole:
	case !last.certain:
		end = NoTable
	case trimmed:
		end = nameless
	default:
		return stack
	}
	return append(stack, note(end, stack[len(stack)-1]))
}

// mayMiss reports whether callers may be missing after the code at a place in a stack.
func mayMiss(all []code, i int) bool {
	return i < len(all)-1 && !all[i].certain && !starts(all[i].native) && all[i].native.Function != "main"
}

// unnamed reports whether a frame has an address in place of a name.
func unnamed(f mem.Frame) bool {
	return strings.HasPrefix(f.Function, "0x") || f.File != "" && strings.HasPrefix(f.Function, path.Base(f.File)+"+0x")
}

// note is a frame that says something of another.
func note(text string, of mem.Frame) mem.Frame {
	where := of.Function
	if of.File != "" {
		where = path.Base(of.File)
	}
	return mem.Frame{Function: fmt.Sprintf(text, where)}
}

// outermost reports whether a frame is of a function that a program or a thread begins with.
func outermost(f mem.Frame) bool {
	return f.Function == "main" || f.Function == "<module>" || strings.HasPrefix(f.Function, "runtime.") || starts(f)
}

// starts reports whether a frame is of the C library, and calls main or a thread's first function.
func starts(f mem.Frame) bool {
	switch f.Function {
	case "_start", "start_thread", "clone", "__clone", "clone3", "__clone3", "__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main":
		return true
	}
	base := path.Base(f.File)
	ofLibrary := strings.HasPrefix(base, "libc.so") || strings.HasPrefix(base, "libpthread.so") || strings.HasPrefix(base, "libc-2") || strings.HasPrefix(base, "ld-musl")
	return ofLibrary && strings.Contains(f.Function, "+0x") // where such functions have no names
}
