package ledger

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Stacks interns call stacks and names them. What it keeps of a name is bounded
// by the program's code, and a number for each stack. Its methods may be called
// from any goroutine, and under no lock of the tracker.
type Stacks struct {
	Table *callstack.Table
	lines lines
	named recentStacks
}

func NewStacks(depth, limit int, libraries []string) *Stacks {
	s := new(Stacks)
	s.Table = callstack.NewTable(callstack.Config{Depth: depth, Max: limit, Short: s.lines.short})
	s.lines.init(s.Table, libraries)
	return s
}

// Line returns the number of an interned stack's call site, which is the one that Stack.CallSite
// chooses.
func (s *Stacks) Line(id tables.StackID) LineID { return s.lines.of(callstack.ID(id)) }

// KnownLine is Line for a stack of which Line was asked before; ok is false for most others. It takes no lock.
func (s *Stacks) KnownLine(id tables.StackID) (line LineID, ok bool) {
	if callstack.ID(id) == callstack.Overflow {
		return s.lines.overflow, true
	}
	line = s.lines.known(callstack.ID(id))
	return line, line != 0
}

// Frame returns the call site with that number.
func (s *Stacks) Frame(line LineID) mem.Frame { return s.lines.frame(line) }

// Site returns the call site of an interned stack.
func (s *Stacks) Site(id tables.StackID) mem.Frame { return s.Frame(s.Line(id)) }

// Stack returns the frames of an interned stack; nil for 0.
func (s *Stacks) Stack(stack tables.StackID) mem.Stack {
	if stack == 0 {
		return nil
	}
	return s.frames(callstack.ID(stack))
}

func (s *Stacks) frames(id callstack.ID) mem.Stack {
	stack, ok := s.named.get(id)
	if !ok {
		stack = make(mem.Stack, 0, len(s.Table.PCs(id))+1)
		for f := range s.Table.Frames(id) {
			stack = append(stack, mem.Frame(f))
		}
		s.named.put(id, stack)
	}
	return stack
}

// recentStacks remembers the stacks that were named last: half of maxNamed at
// least. The zero value is ready to use.
type recentStacks struct {
	mu         sync.Mutex
	young, old map[callstack.ID]mem.Stack
}

const maxNamed = 1024

func (r *recentStacks) get(id callstack.ID) (mem.Stack, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stack, ok := r.young[id]
	if !ok {
		if stack, ok = r.old[id]; ok {
			r.add(id, stack)
		}
	}
	return stack, ok
}

func (r *recentStacks) put(id callstack.ID, stack mem.Stack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(id, stack)
}

func (r *recentStacks) add(id callstack.ID, stack mem.Stack) {
	if r.young == nil || len(r.young) == maxNamed/2 {
		r.young, r.old = make(map[callstack.ID]mem.Stack), r.young
	}
	r.young[id] = stack
}

// Path returns the calls of the user's code in an interned stack.
func (s *Stacks) Path(id tables.StackID) mem.Path {
	return s.Stack(id).Path(s.lines.libraries...)
}

// LineID numbers a line of code that is a call site; 0 is the unknown line. Their number is limited
// by the program's code.
type LineID uint32

// lines finds the call sites of interned stacks. It resolves each return address of the program
// once, and keeps four bytes for each stack.
type lines struct {
	table     *callstack.Table
	libraries []string // skipped, like the runtime

	mu       sync.Mutex
	frames   []mem.Frame // by LineID
	ids      map[mem.Frame]LineID
	calls    map[uintptr]call // by return address
	overflow LineID

	// ofStack has the lines by stack ID. It is read without the lock, and written under it. A page is nil if no stack of it
	// was asked for.
	ofStack atomic.Pointer[[]*linePage]
}

const linesInPage = 1024

// linePage holds the lines of consecutive stacks, 0 for those that were not asked for.
type linePage [linesInPage]atomic.Uint32

// call is what a return address means in the stacks that contain it.
type call struct {
	line  LineID // 0 for the Go runtime
	users bool   // the line is of the user's code
}

func (l *lines) init(table *callstack.Table, libraries []string) {
	l.table, l.libraries = table, libraries
	l.frames, l.ids = []mem.Frame{{}}, map[mem.Frame]LineID{{}: 0}
	l.calls = make(map[uintptr]call)
	l.ofStack.Store(new([]*linePage))
	for f := range table.Frames(callstack.Overflow) {
		l.overflow = l.number(mem.Frame(f))
	}
}

// of returns the line that is the call site of a stack.
func (l *lines) of(id callstack.ID) LineID {
	switch id {
	case 0:
		return 0
	case callstack.Overflow:
		return l.overflow
	}
	if line := l.known(id); line != 0 {
		return line
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slot := l.slot(id)
	if line := LineID(slot.Load()); line != 0 {
		return line
	}
	_, site := l.site(l.table.PCs(id))
	slot.Store(uint32(site.line))
	return site.line
}

// known returns the line of a stack that was asked for before, otherwise 0. It takes no lock.
func (l *lines) known(id callstack.ID) LineID {
	page := int(id / linesInPage)
	if pages := *l.ofStack.Load(); page < len(pages) && pages[page] != nil {
		return LineID(pages[page][id%linesInPage].Load())
	}
	return 0
}

// frame returns the frame of a line.
func (l *lines) frame(line LineID) mem.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frames[line]
}

// slot is where the line of a stack is kept. The caller holds the lock.
func (l *lines) slot(id callstack.ID) *atomic.Uint32 {
	page, pages := int(id/linesInPage), *l.ofStack.Load()
	if page >= len(pages) || pages[page] == nil {
		pages = append(slices.Clone(pages), make([]*linePage, max(0, page+1-len(pages)))...)
		pages[page] = new(linePage)
		l.ofStack.Store(&pages)
	}
	return &pages[page][id%linesInPage]
}

// short returns what is kept of a stack when the table is full: the frames up to the call site, or
// only the call site if no frame is of the user's code. There are few of these, since they do not
// depend on the calls that lead to the line.
func (l *lines) short(pcs []uintptr) []uintptr {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, c := l.site(pcs)
	if c.users {
		return pcs[:i+1]
	}
	return pcs[i : i+min(1, int(c.line))]
}

// site returns the call that Stack.CallSite would choose, and its index; the zero call if the stack
// is empty.
func (l *lines) site(pcs []uintptr) (at int, site call) {
	for i, pc := range pcs {
		c := l.call(pc)
		if c.users {
			return i, c
		}
		if c.line != 0 {
			at, site = i, c
		}
	}
	return at, site
}

func (l *lines) call(pc uintptr) call {
	c, ok := l.calls[pc]
	if !ok {
		var frames mem.Stack // one, unless it is C code
		for _, f := range l.table.FramesAt(pc) {
			frames = append(frames, mem.Frame(f))
		}
		site, users := siteOf(frames, l.libraries)
		c = call{l.number(site), users}
		l.calls[pc] = c
	}
	return c
}

// siteOf returns the call site of a stack, and whether it is in the user's code.
func siteOf(s mem.Stack, libraries []string) (site mem.Frame, users bool) {
	rule := callsite.Rule{Go: slices.Concat(callsite.GoLibraries, libraries)}
	i, rank := callsite.Find(len(s), func(i int) callsite.Rank { return rule.Rank(s[i].Function, s[i].File) })
	if i < 0 {
		return mem.Frame{}, false
	}
	return s[i], rank == callsite.User
}

func (l *lines) number(f mem.Frame) LineID {
	line, ok := l.ids[f]
	if !ok {
		line = LineID(len(l.frames))
		l.frames = append(l.frames, f)
		l.ids[f] = line
	}
	return line
}
