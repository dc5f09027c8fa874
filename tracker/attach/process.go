package attach

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/container"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func newProcess(all *sources, cfg Config, functions []function, pid int, before birth, late *earlier, to feed, pythons *python.Processes) *process {
	p := &process{
		shared: all.shared, all: all, functions: functions, maxEvents: cfg.maxEvents, late: late,
		stacks:  &stackTable{max: cfg.maxStacks, ids: make(map[string]tables.StackID)},
		sources: make(map[deviceID]*Source), feed: to, pythons: pythons,
	}
	p.begin(pid, before)
	return p
}

// begin forgets everything but the ledgers: an exec replaces the whole program.
func (p *process) begin(pid int, before birth) {
	p.origin, p.since, p.generation = before.origin, before.since, 0
	p.origin.PID, p.origin.Program = pid, cmp.Or(before.origin.Program, before.comm)
	switch now := originOf(pid); {
	case p.isSame() && now.Program != "":
		p.origin = now // its container may have come later
	case p.origin.Host == "":
		p.origin.Host = now.Host
	}
	p.taught, p.trampoline = make(map[uint64]struct{}), 0
	p.changed()
	p.symbols = symbols.New(pid, maxFrames, before.Maps, p.maps, p.changed)
	p.live, p.physical, p.mapped = make(map[liveKey]*buffer), make(map[uint64]*buffer), make(map[uint64]mapped)
	p.contexts, p.primary, p.threads = make(map[uint64]deviceID), make(map[deviceID]*primary), make(map[uint32]*thread)
}

func originOf(pid int) snapshot.Origin {
	o := snapshot.Origin{PID: pid, Container: container.Of(pid)}
	o.Host, _ = os.Hostname()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		o.Program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	return o
}

// birthOf reads what a process runs since a program began; nil if it is gone, or may run other code by now. It may end meanwhile.
func birthOf(pid int, from feed, since uint32) *birth {
	if _, now, ok := from.code(pid); ok && now != since {
		return nil
	}
	mappings, err := symbols.ReadMaps(pid)
	if err != nil || len(mappings) == 0 {
		return nil
	}
	its := &birth{origin: originOf(pid), since: since, Maps: symbols.Maps{All: mappings}}
	generation, now, ok := from.code(pid)
	if ok && now != since {
		return nil
	}
	if ok && generation == since {
		its.Linked = mappings
	}
	return its
}

// maps reads the mappings of the process, if it has all the code still that it had at the event that is applied. Else it is nil.
func (p *process) maps() []symbols.Mapping {
	if !p.isSame() {
		return nil
	}
	now, err := symbols.ReadMaps(p.origin.PID)
	if err != nil || !p.isSame() {
		return nil
	}
	return now
}

// isSame reports whether the process has all the code still that it had at the event that is applied. More may have come.
func (p *process) isSame() bool {
	generation, since, ok := p.feed.code(p.origin.PID)
	return ok && (since == p.since || generation == p.generation)
}

// exec ends the program that the process ran so far, and its buffers and contexts with it.
func (p *process) exec(now time.Duration, before birth) {
	p.mu.Lock()
	p.take(now, func(*buffer) bool { return true })
	p.mu.Unlock()
	p.begin(p.origin.PID, before)
	p.runs(p.origin.Program)
}

// runs notes the program's name: what is live from now on is this program's.
func (p *process) runs(program string) {
	p.origin.Program = program
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		s.origin.Program = program
	}
}

// end stops the clock of the sources: nothing gets older any more. The caller holds the lock.
func (p *process) end(now time.Duration) {
	at := p.start.Add(now)
	for _, s := range p.sources {
		s.now, s.ended = func() time.Time { return at }, true
		s.wake()
	}
}

// call applies a call of a function of the driver.
func (p *process) call(e *event, now time.Duration) {
	var stack tables.StackID
	f := p.functions[e.function]
	if f.effect.stacked() {
		stack = p.stack(p.trace(e), e.python) // it may read files: without the lock
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.thread(e.tid)
	if f.effect.atEntry() && e.phase == atReturn { // it failed
		if t.undo != nil {
			t.undo()
		}
		t.undo = nil
		return
	}
	if f.effect == reports { // it returns nothing
		e.result = 0
	}
	if (f.returned || f.void || p.silent[int(e.function)]) && e.phase == atReturn {
		if e.result = 0; f.returned {
			e.out = e.returned
		}
		if e.out == 0 {
			e.result = refusedToGive
		}
	}
	if e.phase == atReturn && e.result != 0 {
		p.failed(f, e, t, stack, now)
		return
	}
	t.undo = nil
	p.succeeded(f, e, t, stack, now)
}

// stack returns the number of a call stack. Python frames follow the native ones after a 0, which
// is no return address.
func (p *process) stack(t symbols.Trace, words []uint64) tables.StackID {
	if len(words) == 0 {
		return p.stacks.add(t.Addresses, func() mem.Stack { return p.symbols.Resolve(t, nil) })
	}
	its := p.python()
	if its != nil {
		its.Number(words)
	}
	p.key = append(append(append(p.key[:0], t.Addresses...), 0), words...)
	return p.stacks.add(p.key, func() mem.Stack {
		if its == nil {
			return p.symbols.Resolve(t, nil)
		}
		python := symbols.Python{Image: its.Image, Runs: its.Runs(words), Rest: "(functions of another interpreter of Python)"}
		if len(words) == 2*maxPython {
			more := mem.Frame{Function: fmt.Sprintf("(more than %d frames of Python: the others are left out)", maxPython)}
			python.Runs, python.Rest = append(python.Runs, []mem.Frame{more}), ""
		}
		return p.symbols.Resolve(t, &python)
	})
}

// python returns the interpreter of a process that runs one; nil if its memory may not be read, or is gone.
func (p *process) python() *python.Process {
	if its := p.pythons.Get(p.origin.PID); its != nil {
		if its.Image == "" {
			its.Image = p.symbols.Path(its.Inside)
		}
		return its
	}
	at := time.Now()
	if mappings, err := symbols.ReadMaps(p.origin.PID); err == nil {
		p.pythons.Look(p.origin.PID, mappings, at) // the library in front of libcuda told of it before anybody looked
	}
	return p.pythons.Get(p.origin.PID)
}

const (
	outOfMemory   = 2 // CUDA_ERROR_OUT_OF_MEMORY
	refusedToGive = 1 // a library's function returned no address
)

func (p *process) failed(f function, e *event, t *thread, stack tables.StackID, now time.Duration) {
	if e.result == outOfMemory && f.effect.stacked() && f.library == "" {
		e.pitch = 0 // it was not written
		p.source(p.place(f, e, t)).ledger.refused(sizeOf(f, e), stack, now)
	}
}

func (p *process) succeeded(f function, e *event, t *thread, stack tables.StackID, now time.Duration) {
	switch f.effect {
	case allocates, hands, allocatesPitched, allocatesArray, allocatesArray3D, allocatesMipmapped, imports, registers, creates, importsPhysical:
		p.allocated(f, e, t, stack, now)
	case reports:
		switch size := int64(e.args[f.size]); {
		case size < 0:
			p.freed(f, e, t, now)
		case size > 0 && e.args[f.address] != 0:
			p.allocated(f, e, t, stack, now)
		}
	case frees, takesBack:
		p.freed(f, e, t, now)

	case retains:
		if b := p.physical[e.out]; b != nil {
			b.held++
		}
	case releases:
		p.released(e.args[0], t, now)
	case mapsMemory:
		if b := p.physical[e.args[3]]; b != nil {
			b.held++
			p.mapped[e.args[0]] = mapped{e.args[1], b}
		}
	case unmapsMemory:
		p.unmapped(e.args[0], e.args[1], t, now)

	case makesContext:
		p.contexts[e.out] = deviceID(int32(e.args[f.device]))
		t.pushed(e.out)
	case destroysContext:
		p.destroyed(e.args[0], t, now)
	case pushesContext:
		t.pushed(e.args[0])
	case popsContext:
		t.contexts = t.contexts[:max(0, len(t.contexts)-1)]
	case setsContext:
		t.contexts = append(t.contexts[:max(0, len(t.contexts)-1)], e.args[0])
	case retainsPrimary:
		p.retained(deviceID(int32(e.args[f.device])), e.out)
	case releasesPrimary, resetsPrimary:
		p.primaryReleased(deviceID(int32(e.args[0])), f.effect == resetsPrimary, t, now)
	}
}

// process turns the events of one process into changes of the ledgers. Only the watcher's reader
// uses it, and takes the lock where it changes a ledger.
type process struct {
	*shared
	all        *sources
	functions  []function
	maxEvents  int
	origin     snapshot.Origin
	late       *earlier // it ran before it was watched; nil if not
	stacks     *stackTable
	symbols    *symbols.Symbolizer
	walked     []uint64 // room for a call stack
	key        []uint64 // room for one with frames of Python
	pythons    *python.Processes
	feed       feed
	generation uint32              // at the latest event; 0 before the first
	since      uint32              // code has not gone since this one
	taught     map[uint64]struct{} // return addresses: see feed.teach
	trampoline uint64              // see symbols.Symbolizer.Trampoline; 0 if it is not known to have one
	sources    map[deviceID]*Source

	live     map[liveKey]*buffer
	physical map[uint64]*buffer // by handle, while held
	mapped   map[uint64]mapped  // by address

	contexts map[uint64]deviceID
	primary  map[deviceID]*primary
	threads  map[uint32]*thread
}

// liveKey is the place of a live buffer. A block can begin at the same address as its segment, so
// the key tells them apart.
type liveKey struct {
	at    alloc.Ptr
	block bool
}

func (b *buffer) key() liveKey { return liveKey{b.ptr, b.block} }

// mapped is physical memory at an address.
type mapped struct {
	size uint64
	of   *buffer
}

// primary is a device's primary context.
type primary struct {
	context  uint64
	retained int
}

// birth is what was known about a process at its start. It may be gone when its first event is
// read.
type birth struct {
	origin snapshot.Origin
	since  uint32 // code has not gone since this generation
	group  uint64 // the number of its control group, when the event of its fork or exec came; 0 if that did not say
	comm   string // see event.comm: its name where its file's is not known
	symbols.Maps
}

// thread is the call that a thread of the process is in.
type thread struct {
	contexts []uint64 // the current one is the last
	undo     func()   // takes back what the current call has changed; nil if nothing
}

// source returns the ledger of a device.
func (p *process) source(d deviceID) *Source {
	s := p.sources[d]
	if s == nil {
		s = &Source{
			shared: p.shared, now: time.Now, origin: p.origin, device: d,
			ledger: newLedger(p.stacks, p.maxEvents),
			before: p.late.on(d), beside: p.sources,
		}
		p.sources[d] = s
		p.all.keep(s)
	}
	return s
}

func (p *process) thread(tid uint32) *thread {
	t := p.threads[tid]
	if t == nil {
		t = new(thread)
		p.threads[tid] = t
	}
	return t
}

// current is the thread's current context, 0 if it is not known.
func (t *thread) current() uint64 {
	if len(t.contexts) == 0 {
		return 0
	}
	return t.contexts[len(t.contexts)-1]
}

func (p *process) deviceOf(context uint64) deviceID {
	if d, ok := p.contexts[context]; ok {
		return d
	}
	return p.late.device()
}
