package symbols

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Trace is the return addresses of a call stack, innermost first.
type Trace struct {
	Addresses []uint64
	// FirstUncertain is the index of the first address whose caller was found by a frame pointer. If it
	// is NotReported, that is the first address without an unwind rule.
	FirstUncertain int
	End            string // why there are no more
}

// NotReported is the FirstUncertain of a Trace from a source that does not report it.
const NotReported = -1

// Reasons why a stack ends before its outermost frame, which Resolve appends as a frame.
const (
	Complete     = "" // it does not
	NoTable      = "(the stack ends early: %s keeps no frame pointers, and has no table of its callers)"
	BeyondCopy   = "(the stack ends early: what lies beyond %s is further up the stack than was copied)"
	AtTrampoline = "(the stack ends early: a probe hides what called %s)"
	CopyDropped  = "(the stack ends early: calls came faster than they were read, and there was no room to keep what called %s)"
	TooMany      = "(more than %d frames: the others are left out)"
	unreadCode   = "(the stack ends early: the process ended, or unloaded code, before it was read which file has the code at %s)"
	unreadCaller = "(the stack ends early: the process ended, or unloaded code, before it was read which file has the code that called %s)"
	nameless     = "(the stack ends early: what called %s is code without a name)"
)

// gap stands between two frames where callers may be missing: the frame pointer may be that of a frame
// further out.
const gap = "(callers may be missing here: %s has no table of them, and may keep no frame pointers)"

// unreadGap stands in place of gap after code of which not even the file is known.
const unreadGap = "(callers may be missing here: the process ended, or unloaded code, before it was read which file has the code at %s)"

// gaps stands once after several frames without a name, which are usually generated code.
const gaps = "(callers may be missing here and between the nameless frames before this: %s has no table of them, and may keep no frame pointers)"

// Resolve names return addresses. If the stack does not reach an outermost frame, a last frame in
// parentheses says why; one between two others says that callers may be missing there. The callers of main
// and of a thread's first function are left out. Python functions replace the frames of their
// interpreter; without such frames they come last.
func (s *Symbolizer) Resolve(t Trace, python *Python) mem.Stack {
	s.codeBuffer = slices.Grow(s.codeBuffer[:0], len(t.Addresses))
	all := s.codeBuffer[:len(t.Addresses)]
	pointed := t.FirstUncertain
	for i, at := range t.Addresses {
		at-- // within the call, not after it
		its := s.lookUp(at)
		if !its.hasRule && pointed == NotReported {
			pointed = i
		}
		all[i] = code{
			frames: its.frames, native: its.frames[len(its.frames)-1],
			certain: its.hasRule && (pointed == NotReported || i < pointed) || s.keepsFramePointer(at),
		}
		m, ok := procfs.Find(s.maps.All, at)
		all[i].unread = !ok && s.stale
		if ok && python != nil {
			all[i].ofPython = m.Path == python.Image && all[i].native.Function != "_start"
			if !m.IsFile() && its.frames[0].File != m.Path { // a trampoline of python -X perf
				all[i].frames, all[i].certain = nil, true
			}
		}
	}
	if python == nil {
		return s.frameList(all, t.End)
	}
	rest := python.replace(all)
	return append(s.frameList(all, t.End), rest...)
}

// frameList returns the frames of all code, with notes about missing callers.
func (s *Symbolizer) frameList(all []code, end string) (stack mem.Stack) {
	full := end == TooMany && len(all) > 0
	if full { // the callers of main are not missing
		last := all[len(all)-1].native
		full = last.Function != "main" && !starts(last)
	}
	trimmed, unread, started := false, false, false
	for !full && len(all) > 1 && strings.HasPrefix(all[len(all)-1].native.Function, "0x") {
		all, trimmed, unread = all[:len(all)-1], true, all[len(all)-1].unread
	}
	if n := len(all); !full && n > 2 && strings.HasPrefix(all[n-2].native.Function, "__libc_start_main") { // called by _start, which may have no name
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
			text = gaps // the next note covers both
		default:
			if its.unread {
				text = unreadGap
			}
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
	case last.unread && (end == NoTable || end == Complete):
		end = unreadCode
	case last.certain && (unread || end == NoTable && s.stale):
		end = unreadCaller
	case last.certain && end == NoTable: // its caller is known, and no mapping has that
		end = nameless
	case end != Complete:
	case !last.certain:
		end = NoTable
	case trimmed:
		end = nameless
	default:
		return stack
	}
	return append(stack, note(end, stack[len(stack)-1]))
}

// mayMiss reports whether callers may be missing after the code at an index.
func mayMiss(all []code, i int) bool {
	return i < len(all)-1 && !all[i].certain && !starts(all[i].native) && all[i].native.Function != "main"
}

// unnamed reports whether a frame has an address in place of a name.
func unnamed(f mem.Frame) bool {
	return strings.HasPrefix(f.Function, "0x") || f.File != "" && strings.HasPrefix(f.Function, path.Base(f.File)+"+0x")
}

// note returns a frame with a note about another.
func note(text string, of mem.Frame) mem.Frame {
	where := of.Function
	if of.File != "" {
		where = path.Base(of.File)
	}
	return mem.Frame{Function: fmt.Sprintf(text, where)}
}

// outermost reports whether a frame is that of the first function of a program or a thread.
func outermost(f mem.Frame) bool {
	return f.Function == "main" || f.Function == "<module>" || strings.HasPrefix(f.Function, "runtime.") || starts(f)
}

// starts reports whether a frame is the C library's caller of main or of a thread's first function.
func starts(f mem.Frame) bool {
	switch f.Function {
	case "_start", "start_thread", "clone", "__clone", "clone3", "__clone3", "__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main":
		return true
	}
	base := path.Base(f.File)
	ofLibrary := strings.HasPrefix(base, "libc.so") || strings.HasPrefix(base, "libpthread.so") || strings.HasPrefix(base, "libc-2") || strings.HasPrefix(base, "ld-musl")
	return ofLibrary && strings.Contains(f.Function, "+0x") // these functions, in a library without symbols
}

// Python is the Python functions that a thread runs.
type Python struct {
	Image string        // the path of the interpreter's file
	Runs  [][]mem.Frame // innermost first: the functions of each run of the interpreter's loop
	Rest  string        // the frame for further loops, if there are more than Runs
}

// loop reports whether code is the loop of the interpreter.
func (c code) loop() bool {
	return c.ofPython && strings.HasPrefix(c.native.Function, "_PyEval_EvalFrameDefault")
}

// replace replaces the interpreter's frames by Python functions: each loop by its run. If loops have no
// name, since the interpreter has no symbols, each sequence of its frames gets one run, and the last the
// remaining ones. Without such frames, the functions are returned as the rest.
func (p *Python) replace(all []code) (rest []mem.Frame) {
	loops, stretches := 0, 0
	for i, c := range all {
		if c.loop() {
			loops++
		}
		if begins(all, i) {
			stretches++
		}
	}
	runs, named := p.Runs, loops >= len(p.Runs)
	take := func(n int) (frames []mem.Frame) {
		frames, runs = slices.Concat(runs[:n]...), runs[n:]
		return frames
	}
	for i, c := range all {
		if !c.ofPython {
			continue
		}
		all[i].frames = nil
		switch {
		case named && c.loop() && len(runs) > 0:
			all[i].frames = take(1)
		case named && c.loop() && loops > len(p.Runs) && p.Rest != "":
			all[i].frames, loops = []mem.Frame{{Function: p.Rest}}, 0
		case !named && begins(all, i):
			n := min(1, len(runs))
			if stretches--; stretches == 0 {
				n = len(runs)
			}
			all[i].frames = take(n)
		}
	}
	return take(len(runs))
}

// begins reports whether a sequence of the interpreter's frames begins at an index.
func begins(all []code, i int) bool { return all[i].ofPython && (i == 0 || !all[i-1].ofPython) }
