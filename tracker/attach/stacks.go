package attach

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// stackTable is the call stacks of one process, each once, resolved when it is first seen:
// the process may be gone when somebody asks. It is a snapshot.Stacks.
type stackTable struct {
	max int
	ids map[string]snapshot.StackID // by the addresses

	mu    sync.RWMutex
	table snapshot.StackTable
	full  snapshot.StackID
}

// add returns the number of a stack, given by its return addresses. It is for one goroutine at a time.
func (t *stackTable) add(addresses []uint64, resolve func([]uint64) snapshot.Stack) snapshot.StackID {
	if len(addresses) == 0 {
		return 0
	}
	key := unsafe.String((*byte)(unsafe.Pointer(&addresses[0])), 8*len(addresses))
	if id, ok := t.ids[key]; ok {
		return id
	}
	if t.table.Len() >= t.max {
		if t.full == 0 {
			t.full = t.enter(snapshot.Stack{{Function: "(call stack table full)"}})
		}
		return t.full
	}
	id := t.enter(resolve(addresses))
	t.ids[string([]byte(key))] = id
	return id
}

func (t *stackTable) enter(s snapshot.Stack) snapshot.StackID {
	site := callSite(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Add(s, site)
}

// forget drops what the addresses meant: the process has other code there now.
func (t *stackTable) forget() { clear(t.ids) }

// Stack implements snapshot.Stacks.
func (t *stackTable) Stack(id snapshot.StackID) snapshot.Stack {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Stack(id)
}

// Site implements snapshot.Stacks.
func (t *stackTable) Site(id snapshot.StackID) snapshot.Frame {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Site(id)
}

// Path implements snapshot.Stacks: the user's calls, from the site outward.
func (t *stackTable) Path(id snapshot.StackID) snapshot.Path {
	stack, site := t.Stack(id), t.Site(id)
	if site.IsZero() {
		return nil
	}
	path := snapshot.Path{site}
	for _, f := range stack[slices.Index(stack, site)+1:] {
		if rank(f) == callsite.User {
			path = append(path, f)
		}
	}
	return path
}
