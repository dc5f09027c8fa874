package attach

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/container"
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

func (w *Watcher) apply(e *event.Event) {
	now := max(0, time.Duration(int64(e.Time-w.clock)))
	if e.LoadedDriver {
		w.used(Loaded)
	}
	switch e.Phase {
	case event.Forked:
		w.fork(e)
	case event.Execed:
		w.exec(e, now)
	case event.CodeLoaded:
		w.codeLoaded(e)
	case event.CodeUnloaded:
		w.codeUnloaded(e.PID, uint32(e.Args[1]))
	case event.Exited:
		w.exit(e, now)
	case event.PythonCode:
		w.pythons.AddCode(int(e.PID), e.CodeObject)
	default:
		w.call(e, now)
	}
}

// fork adds a process, which runs the program of its parent. State of an earlier process with the
// same number, whose exit event was lost, is dropped.
func (w *Watcher) fork(e *event.Event) {
	child, since, cgroup := uint32(e.Args[0]), uint32(e.Args[1]), e.Args[2]
	delete(w.processes, child)
	delete(w.starts, child)
	record := e.Start
	if parent, ok := w.starts[e.PID]; ok && record == nil {
		if p := w.processes[e.PID]; p != nil {
			parent.Maps = p.symbols.Maps()
		}
		if parent.Cgroup != cgroup { // the parent has moved to another since
			parent.Origin.Container = container.Of(int(child))
		}
		parent.Origin.PID, parent.Since = int(child), since
		record = &parent
	}
	w.recordStart(child, since, cgroup, record, "")
}

// exec replaces the program of a process. The old mappings would name the wrong code, and the memory
// that the old program held is freed.
func (w *Watcher) exec(e *event.Event, now time.Duration) {
	pid, began := e.PID, now
	if generation := e.Args[0]; generation != 0 { // it precedes the event: the new interpreter may have been found in between
		began = time.Duration(int64(generation - w.clock))
	}
	w.pythons.Forget(int(pid), w.start.Add(began))
	before := w.starts[pid]
	delete(w.starts, pid)
	w.recordStart(pid, uint32(e.Args[0]), e.Args[2], e.Start, e.Comm())
	if record := w.starts[pid]; record.Origin.PID == 0 && record.Cgroup != 0 && record.Cgroup == before.Cgroup { // the process is gone, and its control group has not changed
		record.Origin.Container = before.Origin.Container
		w.starts[pid] = record
	}
	w.mu.Lock()
	delete(w.prior, pid)
	w.mu.Unlock()
	if p := w.processes[pid]; p != nil {
		p.exec(now, w.starts[pid])
	}
}

// event.CodeLoaded records the mappings of a process that has loaded more code.
func (w *Watcher) codeLoaded(e *event.Event) {
	if e.Start == nil {
		return
	}
	record := w.starts[e.PID]
	record.Maps = e.Start.Maps
	w.starts[e.PID] = record
	if p := w.processes[e.PID]; p != nil {
		p.symbols.CodeLoaded(record.All)
	}
}

// codeUnloaded records that code of a process may be unmapped from now on.
func (w *Watcher) codeUnloaded(pid, since uint32) {
	record, ok := w.starts[pid]
	if ok {
		record.All, record.Since = record.Linked, since
		if record.Origin.Program == "" { // its exec was read too late; there was no other exec since
			origin := event.OriginOf(int(pid))
			if _, now, ok := w.events.CodeGeneration(int(pid)); ok && now == since {
				record.Origin = origin
			}
		}
		w.starts[pid] = record
	}
	if p := w.processes[pid]; p != nil {
		p.symbols.CodeUnloaded(since)
		w.mu.Lock()
		p.origin.Program = cmp.Or(record.Origin.Program, p.origin.Program)
		w.mu.Unlock()
	}
}

// recordStart records which program a process runs: the process may have ended when its first call
// is read. What the process itself reported is preferred, since it was read at the right moment.
func (w *Watcher) recordStart(pid, since uint32, group uint64, reported *event.StartRecord, comm string) {
	w.discovery.add(int(pid))
	go w.pythons.AwaitInterpreter(int(pid))
	if reported == nil {
		reported = event.ReadStartRecord(int(pid), w.events, since)
	}
	if reported == nil {
		reported = &event.StartRecord{Since: since}
	}
	record := *reported
	record.Cgroup, record.Comm = group, cmp.Or(comm, record.Comm)
	w.starts[pid] = record
}

// exit ends a thread, and with the last one its process. The sources of a process stay; a later
// process with the same number gets new ones.
func (w *Watcher) exit(e *event.Event, now time.Duration) {
	p := w.processes[e.PID]
	if p != nil {
		p.ledger.EndThread(e.TID)
	}
	if last := e.Args[0] == 1; !last {
		return
	}
	w.discovery.remove(int(e.PID))
	w.pythons.Forget(int(e.PID), w.start.Add(now))
	w.mu.Lock()
	delete(w.prior, e.PID)
	if p != nil {
		p.exit(now)
	}
	w.mu.Unlock()
	w.events.RemoveUnwindRules(int(e.PID))
	delete(w.starts, e.PID)
	delete(w.processes, e.PID)
}

// call applies a call of a watched function. The first one of a process makes its ledgers.
func (w *Watcher) call(e *event.Event, now time.Duration) {
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
	p := w.processes[e.PID]
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
