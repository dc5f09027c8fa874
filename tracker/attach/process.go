package attach

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func newProcess(all *sourceList, cfg Config, functions []event.Function, pid int, record event.StartRecord, prior *priorState, to event.Source, pythons *python.Processes) *process {
	p := &process{
		shared: all.shared, list: all, functions: functions, maxEvents: cfg.maxEvents, prior: prior,
		stacks:  &stackTable{max: cfg.maxStacks, ids: make(map[string]tables.StackID)},
		sources: make(map[deviceID]*Source), events: to, pythons: pythons,
	}
	p.reset(pid, record)
	return p
}

// reset drops all state but the ledgers: an exec replaces the whole program.
func (p *process) reset(pid int, record event.StartRecord) {
	p.origin, p.since, p.generation = record.Origin, record.Since, 0
	p.origin.PID, p.origin.Program = pid, cmp.Or(record.Origin.Program, record.Comm)
	switch now := event.OriginOf(pid); {
	case p.codeUnchanged() && now.Program != "":
		p.origin = now // its container may have been set later
	case p.origin.Host == "":
		p.origin.Host = now.Host
	}
	p.loadedRules, p.trampoline = make(map[uint64]struct{}), 0
	p.codeChanged()
	p.symbols = symbols.New(pid, event.MaxFrames, record.Maps, p.maps, p.codeChanged)
	p.live, p.physical, p.mapped = make(map[liveKey]*buffer), make(map[uint64]*buffer), make(map[uint64]mapped)
	p.contexts, p.primary, p.threads = make(map[uint64]deviceID), make(map[deviceID]*primary), make(map[uint32]*thread)
}

// maps returns the mappings of the process; nil if code was unmapped since the current event.
func (p *process) maps() []procfs.Mapping {
	if !p.codeUnchanged() {
		return nil
	}
	now, err := procfs.ReadMaps(p.origin.PID)
	if err != nil || !p.codeUnchanged() {
		return nil
	}
	return now
}

// codeUnchanged reports whether no code of the process was unmapped since the current event. More may
// have been mapped.
func (p *process) codeUnchanged() bool {
	generation, since, ok := p.events.CodeGeneration(p.origin.PID)
	return ok && (since == p.since || generation == p.generation)
}

// exec ends the current program of the process, with its buffers and contexts.
func (p *process) exec(now time.Duration, record event.StartRecord) {
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
func (p *process) call(e *event.Event, now time.Duration) {
	var stack tables.StackID
	f := p.functions[e.Function]
	if f.Effect.RecordsStack() {
		stack = p.stack(p.trace(e), e.Python) // may read files, so without the lock
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.thread(e.TID)
	if f.Effect.AppliesAtEntry() && e.Phase == event.AtReturn { // the call failed
		if t.undo != nil {
			t.undo()
		}
		t.undo = nil
		return
	}
	if f.Effect == event.LibraryReports { // no result
		e.Result = 0
	}
	if (f.Returned || f.Void || p.voidResults[int(e.Function)]) && e.Phase == event.AtReturn {
		if e.Result = 0; f.Returned {
			e.Out = e.Returned
		}
		if e.Out == 0 {
			e.Result = returnedNothing
		}
	}
	if e.Phase == event.AtReturn && e.Result != 0 {
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
		if len(words) == 2*event.MaxPython {
			more := mem.Frame{Function: fmt.Sprintf("(more than %d frames of Python: the others are left out)", event.MaxPython)}
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
	if mappings, err := procfs.ReadMaps(p.origin.PID); err == nil {
		p.pythons.Detect(p.origin.PID, mappings, at) // the preloaded library reported it before the first scan
	}
	return p.pythons.Get(p.origin.PID)
}

const (
	outOfMemory     = 2 // CUDA_ERROR_OUT_OF_MEMORY
	returnedNothing = 1 // a library's function returned no address
)

func (p *process) failed(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	if e.Result == outOfMemory && f.Effect.RecordsStack() && f.Library == "" {
		e.Pitch = 0 // the call did not write it
		p.source(p.deviceFor(f, e, t)).ledger.outOfMemory(sizeOf(f, e), stack, now)
	}
}

func (p *process) succeeded(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	switch f.Effect {
	case event.Allocates, event.LibraryAllocates, event.AllocatesPitched, event.AllocatesArray, event.AllocatesArray3D, event.AllocatesMipmapped, event.Imports, event.Registers, event.Creates, event.ImportsPhysical:
		p.allocated(f, e, t, stack, now)
	case event.LibraryReports:
		switch size := int64(e.Args[f.Size]); {
		case size < 0:
			p.freed(f, e, t, now)
		case size > 0 && e.Args[f.Address] != 0:
			p.allocated(f, e, t, stack, now)
		}
	case event.Frees, event.LibraryFrees:
		p.freed(f, e, t, now)

	case event.Retains:
		if b := p.physical[e.Out]; b != nil {
			b.references++
		}
	case event.Releases:
		p.released(e.Args[0], t, now)
	case event.MapsMemory:
		if b := p.physical[e.Args[3]]; b != nil {
			b.references++
			p.mapped[e.Args[0]] = mapped{e.Args[1], b}
		}
	case event.UnmapsMemory:
		p.unmapped(e.Args[0], e.Args[1], t, now)

	case event.MakesContext:
		p.contexts[e.Out] = deviceID(int32(e.Args[f.Device]))
		t.pushed(e.Out)
	case event.DestroysContext:
		p.destroyed(e.Args[0], t, now)
	case event.PushesContext:
		t.pushed(e.Args[0])
	case event.PopsContext:
		t.contexts = t.contexts[:max(0, len(t.contexts)-1)]
	case event.SetsContext:
		t.contexts = append(t.contexts[:max(0, len(t.contexts)-1)], e.Args[0])
	case event.RetainsPrimary:
		p.retained(deviceID(int32(e.Args[f.Device])), e.Out)
	case event.ReleasesPrimary, event.ResetsPrimary:
		p.primaryReleased(deviceID(int32(e.Args[0])), f.Effect == event.ResetsPrimary, t, now)
	}
}

// process applies the events of one process to its ledgers. Only the watcher's reader uses it, and
// holds mu while it changes a ledger.
type process struct {
	*shared
	list        *sourceList
	functions   []event.Function
	maxEvents   int
	origin      snapshot.Origin
	prior       *priorState // nil if it was watched from its start
	stacks      *stackTable
	symbols     *symbols.Symbolizer
	stackBuffer []uint64 // reused for call stacks
	keyBuffer   []uint64 // reused for keys of stacks with frames of Python
	pythons     *python.Processes
	events      event.Source
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
