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

func newProcess(all *sourceList, cfg Config, functions []function, pid int, record startRecord, prior *priorState, to eventSource, pythons *python.Processes) *process {
	p := &process{
		shared: all.shared, list: all, functions: functions, maxEvents: cfg.maxEvents, prior: prior,
		stacks:  &stackTable{max: cfg.maxStacks, ids: make(map[string]tables.StackID)},
		sources: make(map[deviceID]*Source), events: to, pythons: pythons,
	}
	p.reset(pid, record)
	return p
}

// reset drops all state but the ledgers: an exec replaces the whole program.
func (p *process) reset(pid int, record startRecord) {
	p.origin, p.since, p.generation = record.origin, record.since, 0
	p.origin.PID, p.origin.Program = pid, cmp.Or(record.origin.Program, record.comm)
	switch now := originOf(pid); {
	case p.codeUnchanged() && now.Program != "":
		p.origin = now // its container may have been set later
	case p.origin.Host == "":
		p.origin.Host = now.Host
	}
	p.loadedRules, p.trampoline = make(map[uint64]struct{}), 0
	p.codeChanged()
	p.symbols = symbols.New(pid, maxFrames, record.Maps, p.maps, p.codeChanged)
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

// readStartRecord reads what a process has run since a program started; nil if the process is gone, or
// its code may have changed since.
func readStartRecord(pid int, from eventSource, since uint32) *startRecord {
	if _, now, ok := from.codeGeneration(pid); ok && now != since {
		return nil
	}
	mappings, err := symbols.ReadMaps(pid)
	if err != nil || len(mappings) == 0 {
		return nil
	}
	record := &startRecord{origin: originOf(pid), since: since, Maps: symbols.Maps{All: mappings}}
	generation, now, ok := from.codeGeneration(pid)
	if ok && now != since {
		return nil
	}
	if ok && generation == since {
		record.Linked = mappings
	}
	return record
}

// maps returns the mappings of the process; nil if code was unmapped since the current event.
func (p *process) maps() []symbols.Mapping {
	if !p.codeUnchanged() {
		return nil
	}
	now, err := symbols.ReadMaps(p.origin.PID)
	if err != nil || !p.codeUnchanged() {
		return nil
	}
	return now
}

// codeUnchanged reports whether no code of the process was unmapped since the current event. More may
// have been mapped.
func (p *process) codeUnchanged() bool {
	generation, since, ok := p.events.codeGeneration(p.origin.PID)
	return ok && (since == p.since || generation == p.generation)
}

// exec ends the current program of the process, with its buffers and contexts.
func (p *process) exec(now time.Duration, record startRecord) {
	p.mu.Lock()
	p.removeMatching(now, func(*buffer) bool { return true })
	p.mu.Unlock()
	p.reset(p.origin.PID, record)
	p.setProgram(p.origin.Program)
}

// setProgram sets the name of the program that the process runs from now on.
func (p *process) setProgram(program string) {
	p.origin.Program = program
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		s.origin.Program = program
	}
}

// stopClocks stops the clocks of the sources, so that nothing ages any more. The caller holds mu.
func (p *process) stopClocks(now time.Duration) {
	at := p.start.Add(now)
	for _, s := range p.sources {
		s.now, s.ended = func() time.Time { return at }, true
		s.wake()
	}
}

// call applies a call of a watched function.
func (p *process) call(e *event, now time.Duration) {
	var stack tables.StackID
	f := p.functions[e.function]
	if f.effect.recordsStack() {
		stack = p.stack(p.trace(e), e.python) // may read files, so without the lock
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.thread(e.tid)
	if f.effect.appliesAtEntry() && e.phase == atReturn { // the call failed
		if t.undo != nil {
			t.undo()
		}
		t.undo = nil
		return
	}
	if f.effect == libraryReports { // no result
		e.result = 0
	}
	if (f.returned || f.void || p.voidResults[int(e.function)]) && e.phase == atReturn {
		if e.result = 0; f.returned {
			e.out = e.returned
		}
		if e.out == 0 {
			e.result = returnedNothing
		}
	}
	if e.phase == atReturn && e.result != 0 {
		p.failed(f, e, t, stack, now)
		return
	}
	t.undo = nil
	p.succeeded(f, e, t, stack, now)
}

// stack returns the ID of a call stack. In its key, Python frames follow the native ones after a 0,
// which is no return address.
func (p *process) stack(t symbols.Trace, words []uint64) tables.StackID {
	if len(words) == 0 {
		return p.stacks.add(t.Addresses, func() mem.Stack { return p.symbols.Resolve(t, nil) })
	}
	its := p.python()
	if its != nil {
		its.Number(words)
	}
	p.keyBuffer = append(append(append(p.keyBuffer[:0], t.Addresses...), 0), words...)
	return p.stacks.add(p.keyBuffer, func() mem.Stack {
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

// python returns the process's interpreter of Python; nil if there is none, or its memory cannot be
// read.
func (p *process) python() *python.Process {
	if its := p.pythons.Get(p.origin.PID); its != nil {
		if its.Image == "" {
			its.Image = p.symbols.Path(its.CodeAddress)
		}
		return its
	}
	at := time.Now()
	if mappings, err := symbols.ReadMaps(p.origin.PID); err == nil {
		p.pythons.Detect(p.origin.PID, mappings, at) // the preloaded library reported it before the first scan
	}
	return p.pythons.Get(p.origin.PID)
}

const (
	outOfMemory     = 2 // CUDA_ERROR_OUT_OF_MEMORY
	returnedNothing = 1 // a library's function returned no address
)

func (p *process) failed(f function, e *event, t *thread, stack tables.StackID, now time.Duration) {
	if e.result == outOfMemory && f.effect.recordsStack() && f.library == "" {
		e.pitch = 0 // the call did not write it
		p.source(p.deviceFor(f, e, t)).ledger.outOfMemory(sizeOf(f, e), stack, now)
	}
}

func (p *process) succeeded(f function, e *event, t *thread, stack tables.StackID, now time.Duration) {
	switch f.effect {
	case allocates, libraryAllocates, allocatesPitched, allocatesArray, allocatesArray3D, allocatesMipmapped, imports, registers, creates, importsPhysical:
		p.allocated(f, e, t, stack, now)
	case libraryReports:
		switch size := int64(e.args[f.size]); {
		case size < 0:
			p.freed(f, e, t, now)
		case size > 0 && e.args[f.address] != 0:
			p.allocated(f, e, t, stack, now)
		}
	case frees, libraryFrees:
		p.freed(f, e, t, now)

	case retains:
		if b := p.physical[e.out]; b != nil {
			b.references++
		}
	case releases:
		p.released(e.args[0], t, now)
	case mapsMemory:
		if b := p.physical[e.args[3]]; b != nil {
			b.references++
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

// process applies the events of one process to its ledgers. Only the watcher's reader uses it, and
// holds mu while it changes a ledger.
type process struct {
	*shared
	list        *sourceList
	functions   []function
	maxEvents   int
	origin      snapshot.Origin
	prior       *priorState // nil if it was watched from its start
	stacks      *stackTable
	symbols     *symbols.Symbolizer
	stackBuffer []uint64 // reused for call stacks
	keyBuffer   []uint64 // reused for keys of stacks with frames of Python
	pythons     *python.Processes
	events      eventSource
	generation  uint32              // code generation at the latest event; 0 before the first
	since       uint32              // no code was unmapped since this generation
	loadedRules map[uint64]struct{} // return addresses with a loaded rule
	trampoline  uint64              // see symbols.Symbolizer.Trampoline; 0 if none is known
	sources     map[deviceID]*Source

	live     map[liveKey]*buffer
	physical map[uint64]*buffer // by handle, while held
	mapped   map[uint64]mapped  // by address

	contexts map[uint64]deviceID
	primary  map[deviceID]*primary
	threads  map[uint32]*thread
}

// liveKey identifies a live buffer. A block can begin at the address of its segment, so the key
// distinguishes them.
type liveKey struct {
	at    alloc.Ptr
	block bool
}

func (b *buffer) key() liveKey { return liveKey{b.ptr, b.block} }

// mapped is a mapping of physical memory.
type mapped struct {
	size uint64
	of   *buffer
}

// primary is a device's primary context.
type primary struct {
	context  uint64
	retained int
}

// startRecord is what was read of a process when its program started. The process may be gone when its
// first event is read.
type startRecord struct {
	origin snapshot.Origin
	since  uint32 // no code was unmapped since this generation
	cgroup uint64 // ID of its control group at its fork or exec; 0 if unknown
	comm   string // see event.comm; used if the file's name is unknown
	symbols.Maps
}

// thread is the state of a thread of the process.
type thread struct {
	contexts []uint64 // the current one is the last
	undo     func()   // undoes what the current call has changed; nil if nothing
}

// source returns the ledger of a device.
func (p *process) source(d deviceID) *Source {
	s := p.sources[d]
	if s == nil {
		s = &Source{
			shared: p.shared, now: time.Now, origin: p.origin, device: d,
			ledger:     newLedger(p.stacks, p.maxEvents),
			priorBytes: p.prior.on(d), siblings: p.sources,
		}
		p.sources[d] = s
		p.list.add(s)
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

// current returns the thread's current context; 0 if unknown.
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
	return p.prior.device()
}
