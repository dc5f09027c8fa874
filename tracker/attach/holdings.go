package attach

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// process is what is known of one process: it turns events into changes of the ledgers.
// The watcher's reader alone uses it, with the lock where it changes a ledger.
type process struct {
	*shared
	all       *sources
	functions []function
	maxEvents int
	origin    snapshot.Origin
	late      *earlier // it ran before it was watched; nil if not
	stacks    *stackTable
	symbols   *symbolizer
	sources   map[deviceID]*Source

	live     map[alloc.Ptr]*buffer
	physical map[uint64]*buffer // by handle, while held
	mapped   map[uint64]mapped  // by address

	contexts map[uint64]deviceID
	primary  map[deviceID]*primary
	threads  map[uint32]*thread
}

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

// birth is what a process was made of at its start: it may be gone when its first event is read.
type birth struct {
	origin snapshot.Origin
	maps   []mapping
}

// thread is what a thread of the process is doing.
type thread struct {
	contexts []uint64 // the current one is the last
	undo     func()   // puts back what the call that it is in has taken; nil if nothing
}

// source returns the ledger of a device.
func (p *process) source(d deviceID) *Source {
	s := p.sources[d]
	if s == nil {
		s = &Source{
			shared: p.shared, now: time.Now, origin: p.origin, device: d,
			ledger: newLedger(p.stacks, p.maxEvents),
			growth: snapshot.NewFollower(warmup), before: p.late.on(d),
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
