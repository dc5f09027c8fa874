package symbols

import (
	"path"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// StackTable is the distinct call stacks of one process. They are resolved when they are first seen,
// since the process may be gone later. It is a tables.Stacks.
type StackTable struct {
	max int
	ids map[string]tables.StackID // by the addresses of the stack

	mu    sync.RWMutex
	table tables.StackTable
	full  tables.StackID
}

// add returns the ID of a stack, given by its return addresses and the words of Python frames after
// them. One goroutine at a time may call it.
func (t *StackTable) add(addresses []uint64, resolve func() mem.Stack) tables.StackID {
	if len(addresses) == 0 {
		return 0
	}
	key := unsafe.String((*byte)(unsafe.Pointer(&addresses[0])), 8*len(addresses))
	if id, ok := t.ids[key]; ok {
		return id
	}
	if t.table.Len() >= t.max {
		if t.full == 0 {
			t.full = t.enter(mem.Stack{{Function: "(call stack table full)"}})
		}
		return t.full
	}
	id := t.enter(resolve())
	t.ids[strings.Clone(key)] = id
	return id
}

func (t *StackTable) enter(s mem.Stack) tables.StackID {
	site := callSite(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Add(s, site)
}

// forget drops the addresses: the process has other code there now. Stacks keep their IDs.
func (t *StackTable) forget() { clear(t.ids) }

func (t *StackTable) Stack(id tables.StackID) mem.Stack {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Stack(id)
}

func (t *StackTable) Site(id tables.StackID) mem.Frame {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Site(id)
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
