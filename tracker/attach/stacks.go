package attach

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

// stackTable is the call stacks of one process, each once, resolved when it is first seen:
// the process may be gone when somebody asks. It is a tables.Stacks.
type stackTable struct {
	max int
	ids map[string]tables.StackID // by the addresses of the stack

	mu    sync.RWMutex
	table tables.StackTable
	full  tables.StackID
}

// add returns the number of a stack, given by its return addresses and what follows them. It is for one goroutine at a time.
func (t *stackTable) add(addresses []uint64, resolve func() mem.Stack) tables.StackID {
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

func (t *stackTable) enter(s mem.Stack) tables.StackID {
	site := callSite(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Add(s, site)
}

// forget drops what the addresses meant: the process has other code there now.
func (t *stackTable) forget() { clear(t.ids) }

func (t *stackTable) Stack(id tables.StackID) mem.Stack {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Stack(id)
}

func (t *stackTable) Site(id tables.StackID) mem.Frame {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Site(id)
}

// Path returns the frames of the user's code in a stack, from the call site outward.
func (t *stackTable) Path(id tables.StackID) mem.Path {
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

// callSite returns the line that asked for the memory, as well as the stack shows it.
func callSite(s mem.Stack) mem.Frame {
	i, _ := callsite.Find(len(s), func(i int) callsite.Rank { return rank(s[i]) })
	if i < 0 {
		return mem.Frame{}
	}
	return s[i]
}

var rule = callsite.Rule{Go: callsite.GoLibraries}

// rank judges a frame by the rule of package callsite, which knows the code of other languages. Two
// cases are added here, which only a stack of a whole process has: frames between two languages,
// and code without names.
func rank(f mem.Frame) callsite.Rank {
	versioned := strings.Contains(f.File, "@") // as the files of Go modules are
	switch {
	case strings.HasPrefix(path.Base(f.File), "libcuda.so"),
		strings.Contains(f.Function, "._Cfunc_"),
		slices.ContainsFunc(passers, func(p string) bool {
			return strings.HasPrefix(f.Function, p) || versioned && strings.Contains(f.File, p+"@")
		}):
		return callsite.Machinery
	case strings.HasPrefix(f.Function, "0x"), strings.Contains(f.Function, ".so") && strings.Contains(f.Function, "+0x"):
		return callsite.Note
	case strings.Contains(f.Function, "+0x"): // the program itself, stripped of its names
		return callsite.Standard
	}
	rank := rule.Rank(f.Function, f.File)
	switch library := isLibrary(f.File) && f.Line == 0; {
	case library && (strings.HasPrefix(path.Base(f.File), "libggml") || strings.HasPrefix(f.Function, "ggml_")):
		return callsite.Allocator
	case library: // its code is somebody else's, if there is code with lines
		return min(rank, callsite.Native)
	}
	return rank
}

func isLibrary(file string) bool {
	return strings.HasSuffix(file, ".so") || strings.Contains(path.Base(file), ".so.")
}

// passers are functions that only pass calls on, as prefixes of their names. Some are whole
// modules.
var passers = []string{
	"_cgo_", "crosscall", "x_cgo_", "_Py", "Py", "py::", "_start", "syscall.", "internal/runtime/", "reflect.",
	"github.com/ebitengine/purego", "github.com/jupiterrider/ffi", "github.com/gpumemtrack/gpumemtrack/internal/dylib",
}
