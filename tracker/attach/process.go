package attach

import (
	"cmp"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// watchedProcess is a process that has called a watched function. Only the watcher's reader uses it.
type watchedProcess struct {
	w       *Watcher
	symbols *symbols.Process
	ledger  *ledger.Process
	*processState
}

// processState is what the sources of a process share. Watcher.mu guards it.
type processState struct {
	origin  snapshot.Origin // with the program that it runs now, or ran last
	end     time.Time       // the zero time while it runs
	sources map[ledger.Device]*Source
}

func newProcess(w *Watcher, pid uint32) *watchedProcess {
	start := w.tree.Start(pid)
	p := &watchedProcess{
		w: w, processState: &processState{sources: make(map[ledger.Device]*Source)},
		symbols: symbols.NewProcess(int(pid), start, w.events, w.pythons, w.cfg.maxStacks),
	}
	w.mu.Lock()
	prior := w.prior[pid]
	w.mu.Unlock()
	p.ledger = ledger.NewProcess(w.functions, w.returnsNothing, p.symbols.Stacks(), prior, &w.accuracy, p.newLedger)
	p.setOrigin(int(pid), start)
	return p
}

// newLedger makes the source of a device, and returns its ledger. The caller holds w.mu.
func (p *watchedProcess) newLedger(d ledger.Device, prior *ledger.Prior) *ledger.Ledger {
	s := &Source{w: p.w, process: p.processState, device: d, ledger: ledger.New(p.symbols.Stacks(), p.w.cfg.maxEvents), priorBytes: prior.On(d)}
	p.sources[d] = s
	p.w.addSource(s)
	return s.ledger
}

// setOrigin sets the origin to that of a start record, or to what can be read now if that is newer.
func (p *watchedProcess) setOrigin(pid int, start event.StartRecord) {
	origin := start.Origin
	origin.PID, origin.Program = pid, cmp.Or(start.Origin.Program, start.Comm)
	switch now := event.OriginOf(pid); {
	case p.symbols.CodeUnchanged() && now.Program != "":
		origin = now // its container may have been set later
	case origin.Host == "":
		origin.Host = now.Host
	}
	p.w.mu.Lock()
	p.origin = origin
	p.w.mu.Unlock()
}

// exec ends the current program of the process, with its buffers and contexts.
func (p *watchedProcess) exec(now time.Duration, start event.StartRecord) {
	p.w.mu.Lock()
	p.ledger.Exec(now)
	p.w.mu.Unlock()
	p.symbols.Exec(start)
	p.setOrigin(p.origin.PID, start)
}

// codeUnloaded records that code may have been unmapped since a generation. program is the one that the
// process runs; "" if that is unknown.
func (p *watchedProcess) codeUnloaded(since uint32, program string) {
	p.symbols.CodeUnloaded(since)
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.origin.Program = cmp.Or(program, p.origin.Program)
}

// exit stops the clocks of the sources, so that nothing ages any more. The caller holds w.mu.
func (p *watchedProcess) exit(now time.Duration) {
	p.end = p.w.start.Add(now)
	for _, s := range p.sources {
		s.wake()
	}
}

// call applies a call of a watched function.
func (p *watchedProcess) call(e *event.Event, now time.Duration) {
	var stack tables.StackID
	if f := p.w.functions[e.Function]; f.Effect.RecordsStack() {
		stack = p.symbols.Stack(e, f) // may read files, so without the lock
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.ledger.Call(e, stack, now)
}
