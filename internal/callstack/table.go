package callstack

import (
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// DefaultDepth is the number of frames kept when Config.Depth is zero.
	DefaultDepth = 32
	// MaxDepth is the largest depth that a table can have.
	MaxDepth = 128
	// DefaultMax is the number of distinct stacks kept when Config.Max is zero.
	DefaultMax = 1 << 20
)

// ID is a small handle of an interned stack, valid for the table that gave it. Zero is the unknown, empty stack. IDs are
// given out in sequence from 1.
type ID uint32

// Overflow is the ID of every stack that found its table full. Frames names it as such.
const Overflow = ^ID(0)

// Config says how much a table keeps. The zero value works.
type Config struct {
	Depth int // frames kept of each stack, the innermost ones; 0 means DefaultDepth, at most MaxDepth
	Max   int // distinct stacks kept, after which new ones become Overflow; 0 means DefaultMax
}

// Table interns call stacks. Use NewTable.
type Table struct {
	depth, max int

	stacks set // the stacks, as runtime.Callers gives them
	keys   set // what a walk found, to the ID of the stack it determines; see Capture
	recent recentKeys

	mu   sync.Mutex                  // held to add to stacks, keys and byID
	byID atomic.Pointer[[]*interned] // the stack with ID i is at i-1

	symbols symbols
}

// recentKeys are keys that predict tries, at places that depend on some frames of theirs.
type recentKeys [512]recentKey

type recentKey struct {
	key  atomic.Pointer[interned]
	wait int // for so many stacks more that the key does not predict, it stays; only predict reads and writes this
}

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	t := &Table{depth: cfg.Depth, max: cfg.Max}
	if t.depth <= 0 {
		t.depth = DefaultDepth
	}
	t.depth = min(t.depth, MaxDepth)
	if t.max <= 0 {
		t.max = DefaultMax
	}
	t.stacks.init()
	t.keys.init()
	t.byID.Store(new([]*interned))
	return t
}

// Intern returns the ID of a stack obtained elsewhere. pcs holds return addresses as [runtime.Callers] gives them,
// innermost first; frames beyond the table's depth are ignored. Intern does not keep pcs. The ID of no frames is 0.
func (t *Table) Intern(pcs []uintptr) ID {
	if len(pcs) == 0 {
		return 0
	}
	pcs = pcs[:min(len(pcs), t.depth)]
	hash := hashWords(pcs)
	if e := t.stacks.find(hash, pcs); e != nil {
		return e.id
	}
	return t.add(hash, pcs)
}

// add gives a stack an ID, unless another goroutine has just done so or the table is full.
func (t *Table) add(hash uint64, pcs []uintptr) ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.stacks.find(hash, pcs); e != nil {
		return e.id
	}
	all := *t.byID.Load()
	if len(all) >= t.max || ID(len(all)+1) == Overflow {
		return Overflow
	}
	e := &interned{hash: hash, id: ID(len(all) + 1), words: slices.Clone(pcs)}
	// Readers of the old slice never look past its length. An ID must lead to its stack before anyone can find it.
	all = append(all, e)
	t.byID.Store(&all)
	t.stacks.insert(e)
	return e.id
}

// PCs returns the return addresses of a stack, innermost first, as [runtime.Callers] gives them; none for 0, Overflow and
// IDs that the table did not give. The slice is shared and must not be written to.
func (t *Table) PCs(id ID) []uintptr {
	all := *t.byID.Load()
	if id == 0 || uint64(id) > uint64(len(all)) {
		return nil
	}
	return slices.Clip(all[id-1].words)
}

// Len returns the number of distinct stacks interned. The IDs 1 to Len are valid.
func (t *Table) Len() int { return len(*t.byID.Load()) }
