// Package callstack takes the caller's call stack cheaply enough to do it at every device allocation.
//
// A [Table] interns stacks: equal stacks get the same [ID], a number that fits in a record. Names are looked up once for each
// address in the program, and put together when a stack is printed.
//
//	stacks := callstack.NewTable(callstack.Config{})
//	id := stacks.Capture(0) // at each allocation
//	for f := range stacks.Frames(id) {
//		fmt.Println(f.Function, f.File, f.Line)
//	}
//
// # How
//
// On amd64 and arm64 Go keeps frame pointers. Capture follows them in assembly, where the goroutine can be neither
// preempted nor moved, and never leaves the bounds of the goroutine's own stack. That gives the return address of each
// physical frame, about a nanosecond apiece, but no inlined frames. So the addresses serve as a key: the first time a key is
// seen, [runtime.Callers] takes the true stack, which is kept under it. A key is kept only if it determines the stack (see
// determines); below a cgo callback, or while a nil dereference unwinds, it does not, and Capture takes the slow way each
// time. Such stacks also show which frames are inlined at each address, so that the stack of most new keys follows from those
// before (see learnRuns). A key that was found lately is not even walked to, but checked frame by frame (see predict).
//
// The assembly relies on three fields of the Go runtime. They are checked when the program begins (see layout.go). Where they
// are not what it expects, Capture takes the slow way, [runtime.Callers] alone; so it does on other architectures, with other
// compilers, and under the build tag nofp. Either way the ID stands for exactly the frames that [runtime.Callers] reports, up
// to the table's depth.
//
// # Cost
//
// A known stack costs no allocation and no lock: 24 ns at 16 frames, 29 at 24 and 33 at 32 if it was found lately, otherwise
// 43, 51 and 69. runtime.Callers takes 900 to 1,500 ns for the same. A new stack costs some 1.2 us,
// or 2 if it has an address that is new.
//
// A table keeps about 200 + 20 x depth bytes for each distinct stack (640 were measured at 22 frames, 801 at 29), and never
// drops one. Config.Max bounds how many it keeps complete: the default takes 55 MB at most. Config.Short says what to keep of the
// others, a quarter as many at most. These take the slow way.
//
// # Concurrency
//
// Every function and method may be called from any goroutine. Looking up a known stack takes no lock.
package callstack

import (
	"bytes"
	"iter"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// DefaultDepth is the number of frames kept when Config.Depth is zero.
	DefaultDepth = 32
	// MaxDepth is the largest depth that a table can have.
	MaxDepth = 128
	// DefaultMax is the number of distinct stacks kept when Config.Max is zero.
	DefaultMax = 1 << 16
)

// ID is a small handle of an interned stack, valid for the table that gave it. Zero is the unknown, empty stack. IDs are
// given out in sequence from 1.
type ID uint32

// Overflow is the ID of every stack that found its table full and was not cut short. Frames names it as such.
const Overflow = ^ID(0)

// Config says how much a table keeps. The zero value works.
type Config struct {
	Depth int // frames kept of each stack, the innermost ones; 0 means DefaultDepth, at most MaxDepth
	Max   int // distinct stacks kept complete; 0 means DefaultMax

	// Short picks the part of a stack that is kept when the table is full: a part of pcs, which are return addresses as Intern gets
	// them. It should have few different results: a quarter of Max are kept beside the complete stacks. A stack becomes Overflow if its
	// part is empty, or is new when the table is full of parts too; without Short all do. It is called under no lock, by any
	// goroutine, and must not keep pcs.
	Short func(pcs []uintptr) []uintptr
}

// Table interns call stacks. Use NewTable.
type Table struct {
	depth, max int
	short      func(pcs []uintptr) []uintptr

	interned *store // by ID
	stacks   set    // the stacks, as runtime.Callers gives them
	shorts   set    // the parts of stacks that found the table full
	keys     set    // what a walk found, to the ID of the stack it determines; see Capture
	recent   recentKeys

	mu sync.Mutex // held to add to the sets and their stores

	symbols symbols
}

// recentKeys are keys that predict tries, at places that depend on some frames of theirs.
type recentKeys [512]recentKey

type recentKey struct {
	key  atomic.Pointer[interned]
	wait int // the key stays for this many more stacks that it does not predict; only predict reads and writes this
}

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	t := &Table{depth: cfg.Depth, max: cfg.Max, short: cfg.Short}
	if t.depth <= 0 {
		t.depth = DefaultDepth
	}
	t.depth = min(t.depth, MaxDepth)
	if t.max <= 0 {
		t.max = DefaultMax
	}
	t.interned = newStore()
	t.stacks.in, t.shorts.in, t.keys.in = t.interned, t.interned, newStore()
	return t
}

// Intern returns the ID of a stack obtained elsewhere. pcs holds return addresses as [runtime.Callers] gives them,
// innermost first; frames beyond the table's depth are ignored. Intern does not keep pcs. The ID of no frames is 0.
func (t *Table) Intern(pcs []uintptr) ID {
	if len(pcs) == 0 {
		return 0
	}
	pcs = pcs[:min(len(pcs), t.depth)]
	id := t.intern(&t.stacks, t.max, pcs)
	if id == Overflow && t.short != nil {
		// A copy, as the compiler would have every stack that is looked for on the heap.
		if short := t.short(slices.Clone(pcs)); len(short) > 0 {
			id = t.intern(&t.shorts, t.max/4, short)
		}
	}
	return id
}

// intern returns the ID of a stack in a set of at most limit stacks.
func (t *Table) intern(in *set, limit int, pcs []uintptr) ID {
	hash := hashWords(pcs)
	if e := in.find(hash, pcs); e != nil {
		return e.id
	}
	if in.n.Load() >= int64(limit) {
		return Overflow // without waiting for the lock
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := in.find(hash, pcs); e != nil {
		return e.id
	}
	id := ID(t.interned.next())
	if in.n.Load() >= int64(limit) || id == Overflow {
		return Overflow
	}
	number, _ := t.interned.add(interned{id: id, cut: in == &t.shorts}, pcs, nil)
	in.insert(hash, number)
	return id
}

// stack returns the stack of an ID that the table gave; nil for others.
func (t *Table) stack(id ID) *interned {
	if id == 0 || uint32(id) > t.interned.n.Load() {
		return nil
	}
	return t.interned.at(uint32(id))
}

// PCs returns the return addresses of a stack, innermost first, as [runtime.Callers] gives them; none for 0, Overflow and
// IDs that the table did not give. The slice is shared and must not be written to.
func (t *Table) PCs(id ID) []uintptr {
	e := t.stack(id)
	if e == nil {
		return nil
	}
	return slices.Clip(e.words)
}

// Len returns the number of distinct stacks interned. The IDs 1 to Len are valid.
func (t *Table) Len() int { return int(t.interned.n.Load()) }

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
// stays small. The zero value is ready to use. Looking up a known address takes no lock.
type symbols struct {
	known atomic.Pointer[symbolTable]

	mu sync.Mutex // held to add a symbol
}

// symbolTable is a hash table with open addressing and linear probing, at most half full. It is replaced when it grows.
type symbolTable struct {
	n     int
	shift int // 64 less the bits of an index
	slots []atomic.Pointer[symbol]
}

const firstSymbols = 64

func newSymbolTable(slots int) *symbolTable {
	return &symbolTable{shift: 64 - bits.TrailingZeros(uint(slots)), slots: make([]atomic.Pointer[symbol], slots)}
}

// slot returns where the symbol of an address is, or nil where it would be.
func (t *symbolTable) slot(pc uintptr) *atomic.Pointer[symbol] {
	for i := uint64(pc) * multiplier >> (t.shift & 63); ; i++ {
		slot := &t.slots[i&uint64(len(t.slots)-1)]
		if s := slot.Load(); s == nil || s.pc == pc {
			return slot
		}
	}
}

// add returns the table with one more symbol: itself, or a larger one.
func (t *symbolTable) add(s *symbol) *symbolTable {
	if 2*t.n >= len(t.slots) {
		grown := newSymbolTable(2 * len(t.slots))
		for i := range t.slots {
			if s := t.slots[i].Load(); s != nil {
				grown.slot(s.pc).Store(s)
			}
		}
		grown.n = t.n
		t = grown
	}
	t.slot(s.pc).Store(s)
	t.n++
	return t
}

// symbol has the names of an address that [runtime.Callers] gave. All but run never changes.
type symbol struct {
	run     atomic.Pointer[[]uintptr] // see learnRuns; nil if it is not known
	pc      uintptr
	frames  []Frame // one, except for C code, which may have none or several
	entry   uintptr // of the function that has the code
	inlined bool    // into that function
	foreign bool    // runtime code through which signals and C code enter
}

func (s *symbols) at(pc uintptr) *symbol {
	if t := s.known.Load(); t != nil {
		if known := t.slot(pc).Load(); known != nil {
			return known
		}
	}
	return s.add(pc)
}

// add is at for an address that was not known.
func (s *symbols) add(pc uintptr) *symbol {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known.Load()
	if t == nil {
		t = newSymbolTable(firstSymbols)
	}
	if known := t.slot(pc).Load(); known != nil {
		return known
	}
	added := symbolAt(pc)
	s.known.Store(t.add(added))
	return added
}

func symbolAt(pc uintptr) *symbol {
	frames := runtime.CallersFrames([]uintptr{pc})
	f, more := frames.Next()
	s := &symbol{
		pc:      pc,
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
