package attach

import (
	"cmp"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func newProcess(all *sourceList, cfg Config, functions []event.Function, pid int, record event.StartRecord, prior *priorState, to event.Source, pythons *python.Processes) *process {
	p := &process{
		shared: all.shared, list: all, functions: functions, maxEvents: cfg.maxEvents, prior: prior,
		symbols: symbols.NewProcess(pid, record, to, pythons, cfg.maxStacks),
		sources: make(map[deviceID]*Source),
	}
	p.reset(pid, record)
	return p
}

// reset drops all state but the ledgers: an exec replaces the whole program.
func (p *process) reset(pid int, record event.StartRecord) {
	p.origin = record.Origin
	p.origin.PID, p.origin.Program = pid, cmp.Or(record.Origin.Program, record.Comm)
	switch now := event.OriginOf(pid); {
	case p.symbols.CodeUnchanged() && now.Program != "":
		p.origin = now // its container may have been set later
	case p.origin.Host == "":
		p.origin.Host = now.Host
	}
	p.live, p.physical, p.mapped = make(map[liveKey]*buffer), make(map[uint64]*buffer), make(map[uint64]mapped)
	p.contexts, p.primary, p.threads = make(map[uint64]deviceID), make(map[deviceID]*primary), make(map[uint32]*thread)
}

// exec ends the current program of the process, with its buffers and contexts.
func (p *process) exec(now time.Duration, record event.StartRecord) {
	p.mu.Lock()
	p.removeMatching(now, func(*buffer) bool { return true })
	p.mu.Unlock()
	p.symbols.Exec(record)
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
		stack = p.symbols.Stack(e, f) // may read files, so without the lock
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
	list      *sourceList
	functions []event.Function
	maxEvents int
	origin    snapshot.Origin
	prior     *priorState // nil if it was watched from its start
	symbols   *symbols.Process
	sources   map[deviceID]*Source

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
			ledger:     newLedger(p.symbols.Stacks(), p.maxEvents),
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
