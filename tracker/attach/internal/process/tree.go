// Package process tracks processes: which program each one runs, and which files of the watched libraries
// any of them has loaded or will load.
package process

import (
	"cmp"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/container"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// Tree keeps what each watched process runs: a process may have ended when its first call is read. One
// goroutine at a time may use it.
type Tree struct {
	events    event.Source
	discovery *Discovery
	pythons   *python.Processes
	starts    map[uint32]event.StartRecord
}

// NewTree returns an empty tree. Its processes are added to the discovery and searched for Python.
func NewTree(from event.Source, libraries *Discovery, pythons *python.Processes) *Tree {
	return &Tree{events: from, discovery: libraries, pythons: pythons, starts: make(map[uint32]event.StartRecord)}
}

// Start returns the start record of a process; the zero record if it has none.
func (t *Tree) Start(pid uint32) event.StartRecord { return t.starts[pid] }

// SetMaps sets the mappings of a process.
func (t *Tree) SetMaps(pid uint32, m procfs.Maps) {
	record := t.starts[pid]
	record.Maps = m
	t.starts[pid] = record
}

// Fork adds a process, which runs the program of its parent. State of an earlier process with the
// same number, whose exit event was lost, is dropped.
func (t *Tree) Fork(e *event.Event) (child uint32) {
	child = uint32(e.Args[0])
	since, cgroup := uint32(e.Args[1]), e.Args[2]
	delete(t.starts, child)
	record := e.Start
	if parent, ok := t.starts[e.PID]; ok && record == nil {
		if parent.Cgroup != cgroup { // the parent has moved to another since
			parent.Origin.Container = container.Of(int(child))
		}
		parent.Origin.PID, parent.Since = int(child), since
		record = &parent
	}
	t.record(child, since, cgroup, record, nil, "")
	return child
}

// Join adds a process that runs already.
func (t *Tree) Join(e *event.Event) {
	t.record(e.PID, uint32(e.Args[1]), e.Args[2], e.Start, nil, "")
}

// Gone returns the processes that are not watched any more, although no event said that they have ended.
func (t *Tree) Gone() (all []uint32) {
	for pid := range t.starts {
		if _, _, ok := t.events.CodeGeneration(int(pid)); !ok {
			all = append(all, pid)
		}
	}
	return all
}

// Exec replaces the program of a process, which ended at a time. The old mappings would name the wrong
// code.
func (t *Tree) Exec(e *event.Event, end time.Time) event.StartRecord {
	t.pythons.Forget(int(e.PID), end)
	before := t.starts[e.PID]
	delete(t.starts, e.PID)
	t.record(e.PID, uint32(e.Args[0]), e.Args[2], e.Start, e.Executable, e.Comm())
	record := t.starts[e.PID]
	if record.Origin.PID == 0 && record.Cgroup != 0 && record.Cgroup == before.Cgroup { // the process is gone, and its control group has not changed
		record.Origin.Container = before.Origin.Container
		t.starts[e.PID] = record
	}
	return record
}

// CodeUnloaded records that code of a process may be unmapped from now on. It returns the program that the
// process runs; "" if that is unknown.
func (t *Tree) CodeUnloaded(pid, since uint32) (program string) {
	record, ok := t.starts[pid]
	if !ok {
		return ""
	}
	record.All, record.Since = record.Linked, since
	if record.Origin.Program == "" { // its exec was read too late; there was no other exec since
		origin := event.OriginOf(int(pid))
		if _, now, ok := t.events.CodeGeneration(int(pid)); ok && now == since {
			record.Origin = origin
		}
	}
	t.starts[pid] = record
	return record.Origin.Program
}

// Exit removes a process, which ended at a time.
func (t *Tree) Exit(pid uint32, end time.Time) {
	t.discovery.remove(int(pid))
	t.pythons.Forget(int(pid), end)
	t.events.RemoveUnwindRules(int(pid))
	delete(t.starts, pid)
}

// record records which program a process runs. What the process itself reported is preferred, since it was
// read at the right moment. Of a program that has ended, its executable is known.
func (t *Tree) record(pid, since uint32, cgroup uint64, reported *event.StartRecord, executable *procfs.Executable, comm string) {
	t.discovery.Add(int(pid))
	go t.pythons.AwaitInterpreter(int(pid))
	if reported == nil {
		reported = event.ReadStartRecord(int(pid), t.events, since)
	}
	if reported == nil {
		reported = &event.StartRecord{Since: since}
		if executable != nil { // its own code at least
			reported.Origin.Program, reported.All = executable.Mappings(int(pid))
			reported.Linked = reported.All
		}
	}
	record := *reported
	record.Cgroup, record.Comm = cgroup, cmp.Or(comm, record.Comm)
	t.starts[pid] = record
}
