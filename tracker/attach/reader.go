package attach

import (
	"errors"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

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

// since returns how long after the start of the watcher a time by the clock of the events is.
func (w *Watcher) since(clock uint64) time.Duration {
	return max(0, time.Duration(int64(clock-w.clock)))
}

// exec ends the program of a process. The memory that it held is freed.
func (w *Watcher) exec(e *event.Event, p *watchedProcess, now time.Duration) {
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
	if last := e.Args[0] == 1; !last {
		return
	}
	w.mu.Lock()
	delete(w.prior, e.PID)
	if p != nil {
		p.exit(now)
	}
	w.mu.Unlock()
	w.tree.Exit(e.PID, w.start.Add(now))
	delete(w.processes, e.PID)
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
