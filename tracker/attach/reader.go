package attach

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/container"
)

// read applies the events until the watcher is closed.
func (w *Watcher) read() {
	defer close(w.ended)
	var e event
	for {
		switch err := w.feed.next(&e); {
		case err == nil:
			w.apply(&e)
		case errors.Is(err, errFlushed):
			w.answer()
		case errors.Is(err, os.ErrClosed):
			w.answer()
			return
		default:
			w.mu.Lock()
			w.doubt(time.Since(w.start), err.Error())
			w.mu.Unlock()
		}
	}
}

func (w *Watcher) apply(e *event) {
	now := max(0, time.Duration(int64(e.time-w.clock)))
	switch e.phase {
	case forked:
		w.fork(e)
	case execed:
		w.exec(e, now)
	case loaded:
		w.loaded(e)
	case unlinked:
		w.unlinked(e.pid, uint32(e.args[1]))
	case exited:
		w.exit(e, now)
	default:
		w.call(e, now)
	}
}

// fork begins a process: it runs what its parent runs. If the end of an earlier process with that number was lost, that process
// is forgotten.
func (w *Watcher) fork(e *event) {
	child, since, group := uint32(e.args[0]), uint32(e.args[1]), e.args[2]
	delete(w.processes, child)
	delete(w.births, child)
	told := e.program
	if its, ok := w.births[e.pid]; ok && told == nil {
		if p := w.processes[e.pid]; p != nil {
			its.Maps = p.symbols.Maps()
		}
		if its.group != group { // the parent has been put into another since
			its.origin.Container = container.Of(int(child))
		}
		its.origin.PID, its.since = int(child), since
		told = &its
	}
	w.born(child, since, group, told, "")
}

// exec begins another program in a process. What is known of the program before it would name
// the wrong code, and what that held of the devices is gone.
func (w *Watcher) exec(e *event, now time.Duration) {
	pid, began := e.pid, now
	if its := e.args[0]; its != 0 { // the event came after that: the new interpreter may have been found meanwhile
		began = time.Duration(int64(its - w.clock))
	}
	w.pythons.Forget(int(pid), w.start.Add(began))
	before := w.births[pid]
	delete(w.births, pid)
	w.born(pid, uint32(e.args[0]), e.args[2], e.program, e.comm())
	if its := w.births[pid]; its.origin.PID == 0 && its.group != 0 && its.group == before.group { // it is gone: it was where it began
		its.origin.Container = before.origin.Container
		w.births[pid] = its
	}
	w.mu.Lock()
	delete(w.late, pid)
	w.mu.Unlock()
	if p := w.processes[pid]; p != nil {
		p.late = nil
		p.exec(now, w.births[pid])
	}
}

// loaded notes the mappings of a process that has loaded more code.
func (w *Watcher) loaded(e *event) {
	if e.program == nil {
		return
	}
	its := w.births[e.pid]
	its.Maps = e.program.Maps
	w.births[e.pid] = its
	if p := w.processes[e.pid]; p != nil {
		p.symbols.Update(its.All)
	}
}

// unlinked notes that a process may have less code from now on.
func (w *Watcher) unlinked(pid, since uint32) {
	its, ok := w.births[pid]
	if ok {
		its.All, its.since = its.Linked, since
		if its.origin.Program == "" { // its exec was read too late to tell; no other exec has come since
			origin := originOf(int(pid))
			if _, now, ok := w.feed.code(int(pid)); ok && now == since {
				its.origin = origin
			}
		}
		w.births[pid] = its
	}
	if p := w.processes[pid]; p != nil {
		p.unlinked(since)
		p.runs(cmp.Or(its.origin.Program, p.origin.Program))
	}
}

// born notes which program a process runs, since the process may have ended when its first call is
// read. What the process itself reported is preferred: it was true at the right moment.
func (w *Watcher) born(pid, since uint32, group uint64, told *birth, comm string) {
	w.libraries.add(int(pid))
	go w.pythons.Expect(int(pid))
	if told == nil {
		told = birthOf(int(pid), w.feed, since)
	}
	if told == nil {
		told = &birth{since: since}
	}
	its := *told
	its.group, its.comm = group, cmp.Or(comm, its.comm)
	w.births[pid] = its
}

// exit ends a thread, and with the last one its process. The sources of a process stay; a later
// process of the same number gets its own.
func (w *Watcher) exit(e *event, now time.Duration) {
	p := w.processes[e.pid]
	if p != nil {
		delete(p.threads, e.tid)
	}
	if last := e.args[0] == 1; !last {
		return
	}
	w.libraries.remove(int(e.pid))
	w.pythons.Forget(int(e.pid), w.start.Add(now))
	w.mu.Lock()
	delete(w.late, e.pid)
	if p != nil {
		p.end(now)
	}
	w.mu.Unlock()
	w.feed.unteach(int(e.pid))
	delete(w.births, e.pid)
	delete(w.processes, e.pid)
}

// call applies a call of a function that is watched; a process is known from its first one on.
func (w *Watcher) call(e *event, now time.Duration) {
	if int(e.function) >= len(w.functions) {
		return
	}
	p := w.processes[e.pid]
	if p == nil {
		w.mu.Lock()
		late := w.late[e.pid]
		w.mu.Unlock()
		p = newProcess(&w.sources, w.cfg, w.functions, int(e.pid), w.births[e.pid], late, w.feed, w.pythons)
		w.processes[e.pid] = p
	}
	p.call(e, now)
}

// answer wakes the Sync that waits.
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
	if count, since := w.feed.lost(); count > 0 {
		w.lost = loss{events: count, since: w.start.Add(time.Duration(int64(since - w.clock)))}
	}
}
