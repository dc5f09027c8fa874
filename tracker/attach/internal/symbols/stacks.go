package symbols

import (
	"cmp"
	"iter"
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

// callTree holds sequences that often begin alike, such as call stacks from the outermost frame inward: each sequence is a path
// from the root, and a node belongs to all paths through it. A node takes 20 to 28 bytes, whatever the length of its path.
//
// Nodes are numbered from 1 and never removed; 0 is the root, the empty sequence. The zero callTree is empty.
type callTree[V uint32 | uint64] struct {
	parents []uint32 // by node, as the others are
	values  []V      // the last of the sequence
	slots   []uint32 // nodes by hash of parent and value: open addressing, at most half full; 0 is a free slot
	shift   uint8    // 64 minus the binary logarithm of len(slots)
}

const leastSlots = 1 << 8

// add returns the node of the sequence that appends a value to that of a node.
func (t *callTree[V]) add(parent uint32, value V) uint32 {
	if 2*len(t.parents) >= len(t.slots) {
		t.grow()
	}
	at := t.slot(parent, value)
	if t.slots[at] == 0 {
		t.parents, t.values = append(t.parents, parent), append(t.values, value)
		t.slots[at] = uint32(len(t.parents) - 1)
	}
	return t.slots[at]
}

// find returns the node of the same sequence, or 0 if there is none.
func (t *callTree[V]) find(parent uint32, value V) uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[t.slot(parent, value)]
}

// slot returns the slot of a node, which is free if there is no such node.
func (t *callTree[V]) slot(parent uint32, value V) int {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := (uint64(parent)*odd1 ^ uint64(value)) * odd2
	h = (h ^ h>>32) * odd1
	mask := len(t.slots) - 1
	for at := int(h >> t.shift); ; at = (at + 1) & mask {
		if n := t.slots[at]; n == 0 || t.parents[n] == parent && t.values[n] == value {
			return at
		}
	}
}

// grow doubles the slots.
func (t *callTree[V]) grow() {
	if t.slots == nil {
		t.parents, t.values = make([]uint32, 1), make([]V, 1) // the root
		t.slots, t.shift = make([]uint32, leastSlots), 64-8
		return
	}
	t.slots = make([]uint32, 2*len(t.slots))
	t.shift--
	for n := 1; n < len(t.parents); n++ {
		t.slots[t.slot(t.parents[n], t.values[n])] = uint32(n)
	}
}

// len returns the number of nodes, the root included.
func (t *callTree[V]) len() int { return max(1, len(t.parents)) }

// fromEnd yields the sequence of a node, last value first.
func (t *callTree[V]) fromEnd(node uint32) iter.Seq[V] {
	return func(yield func(V) bool) {
		for ; node != 0 && yield(t.values[node]); node = t.parents[node] {
		}
	}
}

// length returns the length of the sequence of a node.
func (t *callTree[V]) length(node uint32) (n int) {
	for ; node != 0; node = t.parents[node] {
		n++
	}
	return n
}

// ofStack returns the node of a stack, whose values are given innermost first; 0 if it is not there.
func (t *callTree[V]) ofStack(stack []V) (node uint32) {
	for _, v := range slices.Backward(stack) {
		if node = t.find(node, v); node == 0 {
			return 0
		}
	}
	return node
}

// addStack adds a stack, whose values are given innermost first.
func (t *callTree[V]) addStack(stack []V) (node uint32) {
	for _, v := range slices.Backward(stack) {
		node = t.add(node, v)
	}
	return node
}
