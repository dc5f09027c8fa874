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
		switch err := w.events.next(&e); {
		case err == nil:
			w.apply(&e)
		case errors.Is(err, errFlushed):
			w.answer()
		case errors.Is(err, os.ErrClosed):
			w.answer()
			return
		default:
			w.mu.Lock()
			w.warn(time.Since(w.start), err.Error())
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
	case codeLoaded:
		w.codeLoaded(e)
	case codeUnloaded:
		w.codeUnloaded(e.pid, uint32(e.args[1]))
	case exited:
		w.exit(e, now)
	default:
		w.call(e, now)
	}
}

// fork adds a process, which runs the program of its parent. State of an earlier process with the
// same number, whose exit event was lost, is dropped.
func (w *Watcher) fork(e *event) {
	child, since, cgroup := uint32(e.args[0]), uint32(e.args[1]), e.args[2]
	delete(w.processes, child)
	delete(w.starts, child)
	record := e.program
	if parent, ok := w.starts[e.pid]; ok && record == nil {
		if p := w.processes[e.pid]; p != nil {
			parent.Maps = p.symbols.Maps()
		}
		if parent.cgroup != cgroup { // the parent has moved to another since
			parent.origin.Container = container.Of(int(child))
		}
		parent.origin.PID, parent.since = int(child), since
		record = &parent
	}
	w.recordStart(child, since, cgroup, record, "")
}

// exec replaces the program of a process. The old mappings would name the wrong code, and the memory
// that the old program held is freed.
func (w *Watcher) exec(e *event, now time.Duration) {
	pid, began := e.pid, now
	if generation := e.args[0]; generation != 0 { // it precedes the event: the new interpreter may have been found in between
		began = time.Duration(int64(generation - w.clock))
	}
	w.pythons.Forget(int(pid), w.start.Add(began))
	before := w.starts[pid]
	delete(w.starts, pid)
	w.recordStart(pid, uint32(e.args[0]), e.args[2], e.program, e.comm())
	if record := w.starts[pid]; record.origin.PID == 0 && record.cgroup != 0 && record.cgroup == before.cgroup { // the process is gone, and its control group has not changed
		record.origin.Container = before.origin.Container
		w.starts[pid] = record
	}
	w.mu.Lock()
	delete(w.prior, pid)
	w.mu.Unlock()
	if p := w.processes[pid]; p != nil {
		p.prior = nil
		p.exec(now, w.starts[pid])
	}
}

// codeLoaded records the mappings of a process that has loaded more code.
func (w *Watcher) codeLoaded(e *event) {
	if e.program == nil {
		return
	}
	record := w.starts[e.pid]
	record.Maps = e.program.Maps
	w.starts[e.pid] = record
	if p := w.processes[e.pid]; p != nil {
		p.symbols.Update(record.All)
	}
}

// codeUnloaded records that code of a process may be unmapped from now on.
func (w *Watcher) codeUnloaded(pid, since uint32) {
	record, ok := w.starts[pid]
	if ok {
		record.All, record.since = record.Linked, since
		if record.origin.Program == "" { // its exec was read too late; there was no other exec since
			origin := originOf(int(pid))
			if _, now, ok := w.events.codeGeneration(int(pid)); ok && now == since {
				record.origin = origin
			}
		}
		w.starts[pid] = record
	}
	if p := w.processes[pid]; p != nil {
		p.codeUnloaded(since)
		p.setProgram(cmp.Or(record.origin.Program, p.origin.Program))
	}
}

// recordStart records which program a process runs: the process may have ended when its first call
// is read. What the process itself reported is preferred, since it was read at the right moment.
func (w *Watcher) recordStart(pid, since uint32, group uint64, reported *startRecord, comm string) {
	w.discovery.add(int(pid))
	go w.pythons.AwaitInterpreter(int(pid))
	if reported == nil {
		reported = readStartRecord(int(pid), w.events, since)
	}
	if reported == nil {
		reported = &startRecord{since: since}
	}
	record := *reported
	record.cgroup, record.comm = group, cmp.Or(comm, record.comm)
	w.starts[pid] = record
}

// exit ends a thread, and with the last one its process. The sources of a process stay; a later
// process with the same number gets new ones.
func (w *Watcher) exit(e *event, now time.Duration) {
	p := w.processes[e.pid]
	if p != nil {
		delete(p.threads, e.tid)
	}
	if last := e.args[0] == 1; !last {
		return
	}
	w.discovery.remove(int(e.pid))
	w.pythons.Forget(int(e.pid), w.start.Add(now))
	w.mu.Lock()
	delete(w.prior, e.pid)
	if p != nil {
		p.stopClocks(now)
	}
	w.mu.Unlock()
	w.events.removeUnwindRules(int(e.pid))
	delete(w.starts, e.pid)
	delete(w.processes, e.pid)
}

// call applies a call of a watched function. The first one of a process makes its ledgers.
func (w *Watcher) call(e *event, now time.Duration) {
	if int(e.function) >= len(w.functions) {
		return
	}
	p := w.processes[e.pid]
	if p == nil {
		w.mu.Lock()
		prior := w.prior[e.pid]
		w.mu.Unlock()
		p = newProcess(&w.sources, w.cfg, w.functions, int(e.pid), w.starts[e.pid], prior, w.events, w.pythons)
		w.processes[e.pid] = p
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
	if count, since := w.events.lost(); count > 0 {
		w.lost = loss{events: count, since: w.start.Add(time.Duration(int64(since - w.clock)))}
	}
}
