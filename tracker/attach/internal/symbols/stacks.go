package symbols

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// StackTable is the distinct call stacks of one process. They are resolved when they are first seen,
// since the process may be gone later. It is a tables.Stacks. Stacks share their outer frames in memory: a
// process may have a hundred thousand of thirty frames each.
type StackTable struct {
	max int

	// By the addresses of the stack, for one goroutine at a time.
	addresses callTree[uint64]
	known     []tables.StackID // by node of addresses; 0 if that is no whole stack

	mu     sync.RWMutex
	frames []mem.Frame // distinct ones
	number map[mem.Frame]uint32
	paths  callTree[uint32]          // of frames, by their numbers
	byPath map[uint32]tables.StackID // by node of paths
	stacks []resolved                // the ID is the index plus one
	full   tables.StackID
}

// resolved is a stack with names.
type resolved struct {
	path uint32 // node of StackTable.paths
	site uint32 // number of the call site's frame
}

// add returns the ID of a stack, given by its return addresses and the words of Python frames after
// them. One goroutine at a time may call it.
func (t *StackTable) add(addresses []uint64, resolve func() mem.Stack) tables.StackID {
	if len(addresses) == 0 {
		return 0
	}
	if n := t.addresses.ofStack(addresses); n != 0 && int(n) < len(t.known) && t.known[n] != 0 {
		return t.known[n]
	}
	if len(t.stacks) >= t.max {
		if t.full == 0 {
			t.full = t.enter(mem.Stack{{Function: "(call stack table full)"}})
		}
		return t.full
	}
	id := t.enter(resolve())
	n := t.addresses.addStack(addresses)
	t.known = append(t.known, make([]tables.StackID, t.addresses.len()-len(t.known))...)
	t.known[n] = id
	return id
}

// enter returns the ID of a stack with names, a new one if need be.
func (t *StackTable) enter(s mem.Stack) tables.StackID {
	site := callSite(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.number == nil {
		t.number, t.byPath = make(map[mem.Frame]uint32), make(map[uint32]tables.StackID)
	}
	path := uint32(0)
	for _, f := range slices.Backward(s) {
		path = t.paths.add(path, t.frame(f))
	}
	id, ok := t.byPath[path]
	if !ok {
		t.stacks = append(t.stacks, resolved{path, t.frame(site)})
		id = tables.StackID(len(t.stacks))
		t.byPath[path] = id
	}
	return id
}

// frame returns the number of a frame. The caller holds t.mu.
func (t *StackTable) frame(f mem.Frame) uint32 {
	n, ok := t.number[f]
	if !ok {
		n = uint32(len(t.frames))
		t.frames = append(t.frames, f)
		t.number[f] = n
	}
	return n
}

// forget drops the addresses: the process has other code there now. Stacks keep their IDs.
func (t *StackTable) forget() { t.addresses, t.known = callTree[uint64]{}, nil }

// Stack implements tables.Stacks. The stack is a new one at each call.
func (t *StackTable) Stack(id tables.StackID) mem.Stack {
	if id == 0 {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	path := t.stacks[id-1].path
	s := make(mem.Stack, 0, t.paths.length(path))
	for n := range t.paths.fromEnd(path) {
		s = append(s, t.frames[n])
	}
	return s
}

// Compare orders stacks frame by frame, innermost first, as tables.CompareFrames orders frames.
func (t *StackTable) Compare(a, b tables.StackID) int {
	if a == b {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	x, y := t.pathOf(a), t.pathOf(b)
	for ; x != 0 && y != 0; x, y = t.paths.parents[x], t.paths.parents[y] {
		m, n := t.paths.values[x], t.paths.values[y]
		if m == n {
			continue
		}
		if c := tables.CompareFrames(t.frames[m], t.frames[n]); c != 0 {
			return c
		}
	}
	return cmp.Compare(min(x, 1), min(y, 1)) // the shorter one comes first
}

// pathOf returns the node of a stack. The caller holds t.mu.
func (t *StackTable) pathOf(id tables.StackID) uint32 {
	if id == 0 {
		return 0
	}
	return t.stacks[id-1].path
}

// Site implements tables.Stacks.
func (t *StackTable) Site(id tables.StackID) mem.Frame {
	if id == 0 {
		return mem.Frame{}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.frames[t.stacks[id-1].site]
}

// Path returns the frames of the user's code in a stack, from the call site outward.
func (t *StackTable) Path(id tables.StackID) mem.Path {
	stack, site := t.Stack(id), t.Site(id)
	if site == (mem.Frame{}) {
		return nil
	}
	path := mem.Path{site}
	for _, f := range stack[slices.Index(stack, site)+1:] {
		if rank(f) == callsite.User {
			path = append(path, f)
		}
	}
	return path
}

// callSite returns the line that asked for the memory, as far as the stack shows it.
func callSite(s mem.Stack) mem.Frame {
	i, _ := callsite.Find(len(s), func(i int) callsite.Rank { return rank(s[i]) })
	if i < 0 {
		return mem.Frame{}
	}
	return s[i]
}

var rule = callsite.Rule{Go: callsite.GoLibraries}

// rank ranks a frame by the rule of package callsite. It adds two cases that only stacks of whole
// processes have: frames between two languages, and code without symbols.
func rank(f mem.Frame) callsite.Rank {
	versioned := strings.Contains(f.File, "@") // as the files of Go modules are
	switch {
	case strings.HasPrefix(path.Base(f.File), "libcuda.so"),
		strings.Contains(f.Function, "._Cfunc_"),
		slices.ContainsFunc(passThrough, func(p string) bool {
			return strings.HasPrefix(f.Function, p) || versioned && strings.Contains(f.File, p+"@")
		}):
		return callsite.Machinery
	case strings.HasPrefix(f.Function, "0x"), strings.Contains(f.Function, ".so") && strings.Contains(f.Function, "+0x"):
		return callsite.Note
	case strings.Contains(f.Function, "+0x"): // the program itself, without symbols
		return callsite.Standard
	}
	rank := rule.Rank(f.Function, f.File)
	switch library := isLibrary(f.File) && f.Line == 0; {
	case library && (strings.HasPrefix(path.Base(f.File), "libggml") || strings.HasPrefix(f.Function, "ggml_")):
		return callsite.Allocator
	case library: // not the user's code, if other frames have lines
		return min(rank, callsite.Native)
	}
	return rank
}

func isLibrary(file string) bool {
	return strings.HasSuffix(file, ".so") || strings.Contains(path.Base(file), ".so.")
}

// passThrough lists prefixes of functions and modules that only forward calls.
var passThrough = []string{
	"_cgo_", "crosscall", "x_cgo_", "_Py", "Py", "py::", "_start", "syscall.", "internal/runtime/", "reflect.",
	"github.com/ebitengine/purego", "github.com/jupiterrider/ffi", "github.com/gpumemtrack/gpumemtrack/internal/dylib",
}
