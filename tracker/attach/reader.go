package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// An event comes from a source: probes in the kernel, or the preloaded library. It changes the process tree
// (package process), or it is a call: package symbols gives the ID of its call stack, and package ledger
// changes the ledger of a device, which a Source shows.

// read applies the events until the watcher is closed.
func (w *Watcher) read() {
	defer close(w.ended)
	var e event.Event
	for {
		switch err := w.events.Next(&e); {
		case err == nil:
			w.apply(&e)
		case errors.Is(err, event.ErrFlushed):
			w.answer()
		case errors.Is(err, os.ErrClosed):
			w.answer()
			return
		default:
			w.mu.Lock()
			w.accuracy.Warn(time.Since(w.start), err.Error())
			w.mu.Unlock()
		}
	}
}

// apply applies an event: to the process tree, and to the process's code or ledgers.
func (w *Watcher) apply(e *event.Event) {
	now := w.since(e.Time)
	if e.LoadedDriver {
		w.used(Loaded)
	}
	p := w.processes[e.PID] // nil if it has called no watched function
	switch e.Phase {
	case event.Forked:
		if p != nil {
			w.tree.SetMaps(e.PID, p.symbols.Maps())
		}
		delete(w.processes, w.tree.Fork(e))
	case event.Joined:
		w.join(e, p, now)
	case event.Execed:
		w.exec(e, p, now)
	case event.CodeLoaded:
		if e.Start != nil {
			w.tree.SetMaps(e.PID, e.Start.Maps)
		}
		if e.Start != nil && p != nil {
			p.symbols.CodeLoaded(e.Start.All)
		}
	case event.CodeUnloaded:
		program := w.tree.CodeUnloaded(e.PID, uint32(e.Args[1]))
		if p != nil {
			p.codeUnloaded(uint32(e.Args[1]), program)
		}
	case event.Exited:
		w.exit(e, p, now)
	case event.PythonCode:
		w.pythons.AddCode(int(e.PID), e.CodeObject)
	default:
		w.call(e, p, now)
	}
}

// used records what a process has done with the driver.
func (w *Watcher) used(u DriverUse) {
	for {
		before := w.use.Load()
		if before >= int64(u) || w.use.CompareAndSwap(before, int64(u)) {
			return
		}
	}
}

// since returns how long after the start of the watcher a time by the clock of the events is.
func (w *Watcher) since(clock uint64) time.Duration {
	return max(0, time.Duration(int64(clock-w.clock)))
}

// exec ends the program of a process. The memory that it held is freed.
func (w *Watcher) exec(e *event.Event, p *watchedProcess, now time.Duration) {
	if w.watchesAll() {
		w.end(e.PID, p, e.LostBefore(), now) // the new one joins at its first call
		return
	}
	began := now
	if generation := e.Args[0]; generation != 0 { // it precedes the event: the new interpreter may have been found in between
		began = w.since(generation)
	}
	start := w.tree.Exec(e, w.start.Add(began))
	w.mu.Lock()
	delete(w.prior, e.PID)
	w.mu.Unlock()
	if p != nil {
		p.exec(now, start)
	}
}

// exit ends a thread, and with the last one its process. The sources of a process stay; a later
// process with the same number gets new ones.
func (w *Watcher) exit(e *event.Event, p *watchedProcess, now time.Duration) {
	if p != nil {
		p.ledger.EndThread(e.TID)
	}
	if last := e.Args[0] == 1; last {
		w.end(e.PID, p, e.LostBefore(), now)
	}
}

// end ends a process, of which a number of events is known to be lost.
func (w *Watcher) end(pid uint32, p *watchedProcess, lost uint64, now time.Duration) {
	w.mu.Lock()
	delete(w.prior, pid)
	if p != nil {
		p.lost(lost, p.joined)
		if n := p.accuracy.LostEvents; n > 0 && len(p.sources) == 0 { // no Source has its warnings
			w.accuracy.Warn(now, fmt.Sprintf("%v has no ledger: %d of its events were lost", p.origin, n))
		}
		p.exit(now)
	}
	w.mu.Unlock()
	w.tree.Exit(pid, w.start.Add(now))
	delete(w.processes, pid)
}

// call applies a call of a watched function. The first one of a process makes its ledgers.
func (w *Watcher) call(e *event.Event, p *watchedProcess, now time.Duration) {
	if int(e.Function) >= len(w.functions) {
		return
	}
	switch f := w.functions[e.Function]; {
	case f.Effect == event.LooksUpFunction:
		w.used(Loaded)
		return
	case f.Effect == event.InitializesDriver:
		if e.Result == 0 {
			w.used(Initialized)
		}
		return
	case f.Library == "":
		w.used(Called)
	}
	if p == nil {
		p = newProcess(w, e.PID)
		w.processes[e.PID] = p
	}
	p.call(e, now)
}

// answer wakes a waiting Sync.
func (w *Watcher) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count()
	w.sweep()
	if w.drained != nil {
		close(w.drained)
		w.drained = nil
	}
}

// count reads the kernel's counters; the caller holds w.mu.
func (w *Watcher) count() {
	if count, since := w.events.Lost(); count > 0 {
		w.accuracy.LostEvents, w.accuracy.LostSince = count, w.start.Add(time.Duration(int64(since-w.clock)))
	}
}

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

	joined   time.Time        // when it was first heard of
	accuracy *ledger.Accuracy // the watcher's, unless every process is watched
}

func newProcess(w *Watcher, pid uint32) *watchedProcess {
	start := w.tree.Start(pid)
	p := &watchedProcess{
		w: w, processState: &processState{sources: make(map[ledger.Device]*Source), joined: time.Now(), accuracy: &w.accuracy},
		symbols: symbols.NewProcess(int(pid), start, w.events, w.pythons, w.cfg.maxStacks),
	}
	w.mu.Lock()
	prior := w.prior[pid]
	if w.all.since != 0 {
		p.accuracy = &ledger.Accuracy{Start: w.start}
	}
	w.mu.Unlock()
	p.ledger = ledger.NewProcess(w.functions, w.returnsNothing, p.symbols.Stacks(), prior, p.accuracy, p.newLedger)
	p.setOrigin(int(pid), start)
	return p
}

// newLedger makes the source of a device, and returns its ledger. The caller holds w.mu.
func (p *watchedProcess) newLedger(d ledger.Device, prior *ledger.Prior) *ledger.Ledger {
	s := &Source{w: p.w, process: p.processState, device: d, ledger: ledger.New(p.symbols.Stacks(), p.w.eventsKept()), priorBytes: prior.On(d)}
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

// discoveries is what a watcher does with what its discovery finds out.
type discoveries struct{ w *Watcher }

func (d discoveries) Warn(reason string) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.accuracy.Warn(time.Since(d.w.start), reason)
}

func (d discoveries) LoadedDriver() { d.w.used(Loaded) }

func (d discoveries) ReturnsNothing(function int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.returnsNothing[function] = true
}

// LoadedEarly asks the driver what the process uses. Only libcuda makes contexts.
func (d discoveries) LoadedEarly(pid int, path string, isDriver bool) {
	w := d.w
	before := ledger.ReadPrior(w.driver, pid)
	before.UnseenCalls = isDriver
	_, gone := os.Stat(fmt.Sprintf("/proc/%d", pid))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prior[uint32(pid)] != nil {
		return
	}
	if gone == nil { // otherwise another process may get its number
		w.prior[uint32(pid)] = before
	}
	w.accuracy.Warn(time.Since(w.start), fmt.Sprintf("process %d had loaded %s before it was found: name its path", pid, path))
}
