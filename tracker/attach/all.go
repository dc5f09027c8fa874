package attach

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// allProcesses is the state of a watcher of every process. Watcher.mu guards it.
type allProcesses struct {
	since   uint64 // by the clock of the events; 0 if only some processes are watched
	dropped int    // number of ended processes that were dropped
}

// Bounds of a watcher of every process, which runs for months.
const (
	maxEndedFor    = time.Hour // how long processes that have ended are kept, see Config.maxEnded
	maxEndedSize   = 1 << 19   // entries of all their ledgers, some hundred bytes each
	maxEventsOfAll = 1 << 11   // see Config.maxEvents
	sweepEvery     = 10 * time.Second
	maxWarned      = 32 // processes of which Warnings tells
)

// WatchAll watches every process of the machine that calls the driver, now and later, in any container, until the watcher is closed. It needs
// what New needs, and may be called once. The error says that the kernel refuses, or that Config.Preload is set, which watches only commands.
//
// A process is watched from its first call on. If its program began after WatchAll, or mapped libcuda after it, its ledgers are exact, as those
// of Start are. Of one that ran before, only the sum of what it held is known: see Source.PriorBytes. A libcuda that is in no place where the
// dynamic loader of the machine looks, as the one in the image of a container, is found within some hundredths of a second after the first
// process maps it. What such a process called before is not in its ledgers: Warnings names it. The same file is found once.
//
// Processes do not disturb each other: one that calls faster than its calls are read loses its own, and Warnings names it. Of those that have
// ended, the latest 256 are kept, for an hour: see Dropped. A program that a process executes has Sources of its own. Each keeps its latest
// 2,048 events.
func (w *Watcher) WatchAll() error {
	machine, ok := w.events.(event.Machine)
	if !ok {
		return errors.New("attach: a preloaded library watches only the commands that are started with it: leave Config.Preload out")
	}
	w.discovery.WatchAll()
	if err := w.beginAll(machine); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	for _, pid := range procfs.Processes() {
		if w.discovery.HasLoaded(pid) {
			w.ranBefore(uint32(pid))
			if err := w.events.Watch(pid); err != nil {
				return fmt.Errorf("attach: %w", err)
			}
		}
	}
	go w.sweepLoop()
	return nil
}

// beginAll has the kernel report on every process. Close waits for it.
func (w *Watcher) beginAll(machine event.Machine) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.all.since != 0 {
		return errors.New("the watcher is closed, or watches every process already")
	}
	if err := machine.ReadMappings(w.discovery.Mapped, w.discovery.MissedMappings); err != nil {
		return err
	}
	w.all.since, err = machine.WatchAll()
	return err
}

// Dropped returns the number of processes that have ended and are no longer in Sources. It is 0 unless every process is watched.
func (w *Watcher) Dropped() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.dropped
}

func (w *Watcher) watchesAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.since != 0
}

// ranBefore records what a process used that may have called the driver before.
func (w *Watcher) ranBefore(pid uint32) {
	before := ledger.ReadPrior(w.driver, int(pid))
	before.UnseenCalls = true
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prior[pid] == nil {
		w.prior[pid] = before
	}
}

// programStarted takes a program that has started or, where every process is watched, made its first call: then there is no file.
func (w *Watcher) programStarted(of event.Program, file event.File) {
	if file.Path == "" {
		w.discovery.Joined(int(of.PID))
		return
	}
	w.discovery.ProgramStarted(of, file)
}

// awaitInterpreter waits for the interpreter of a program that has started. One that calls the driver has loaded it.
func (w *Watcher) awaitInterpreter(pid int) {
	if !w.watchesAll() {
		w.pythons.AwaitInterpreter(pid)
	}
}

// join begins to watch a process at its first call.
func (w *Watcher) join(e *event.Event, p *watchedProcess, now time.Duration) {
	if p != nil { // an earlier process with the number, whose end was lost
		w.end(e.PID, p, 0, now)
	}
	w.tree.Join(e)
	since, early := w.discovery.FirstCall(int(e.PID), e.Args[0])
	w.mu.Lock()
	isLate := since < w.all.since || early != ""
	w.mu.Unlock()
	if isLate {
		w.ranBefore(e.PID)
	}
	p = newProcess(w, e.PID)
	w.processes[e.PID] = p
	if early != "" {
		w.mu.Lock()
		p.accuracy.Warn(now, fmt.Sprintf("it had loaded %s before that was found: name its path", early))
		w.mu.Unlock()
	}
}

// lost records how many events of the process were dropped, and when the first was. The caller holds w.mu.
func (p *processState) lost(count uint64, since time.Time) {
	if count <= p.accuracy.LostEvents {
		return
	}
	if p.accuracy.LostEvents == 0 {
		p.accuracy.LostSince = since
	}
	p.accuracy.LostEvents = count
}

// sweepLoop sweeps at intervals until the watcher is closed.
func (w *Watcher) sweepLoop() {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-w.ended:
			return
		case <-ticker.C:
			w.Sync()
		}
	}
}

// sweep counts lost events by process, ends those whose end was lost, and drops some that have ended. All events of before it are read. The
// caller, the reader, holds w.mu.
func (w *Watcher) sweep() {
	machine, ok := w.events.(event.Machine)
	if !ok || w.all.since == 0 {
		return
	}
	for pid, p := range w.processes {
		if count, since := machine.LostBy(int(pid)); count > 0 {
			p.lost(count, w.start.Add(w.since(since)))
		}
	}
	gone := w.tree.Gone()
	w.mu.Unlock()
	for _, pid := range gone {
		w.end(pid, w.processes[pid], 0, time.Since(w.start))
	}
	w.mu.Lock()
	w.dropEnded(maxSources)
}

// dropEnded drops sources of processes that have ended, the earliest first: those that are too old or too many, and as many as must be for a
// number of sources to be left. The caller holds w.mu.
func (w *Watcher) dropEnded(left int) {
	if w.all.since == 0 {
		return
	}
	var ended []*processState
	size := 0
	for _, s := range w.sources {
		if s.process.end.IsZero() {
			continue
		}
		size += s.ledger.Entries()
		if !slices.Contains(ended, s.process) {
			ended = append(ended, s.process)
		}
	}
	slices.SortStableFunc(ended, func(a, b *processState) int { return a.end.Compare(b.end) })
	for len(ended) > 0 && (len(ended) > w.cfg.maxEnded || size > maxEndedSize || len(w.sources) > left || time.Since(ended[0].end) > maxEndedFor) {
		w.sources = slices.DeleteFunc(w.sources, func(s *Source) bool {
			if s.process != ended[0] {
				return false
			}
			size -= s.ledger.Entries()
			return true
		})
		ended = ended[1:]
		w.all.dropped++
	}
}

// eventsKept is how many events the history of a source keeps.
func (w *Watcher) eventsKept() int {
	if w.all.since != 0 { // the caller holds w.mu
		return min(w.cfg.maxEvents, maxEventsOfAll)
	}
	return w.cfg.maxEvents
}

// processWarnings returns the warnings about single processes. The caller holds w.mu.
func (w *Watcher) processWarnings() (all []string) {
	seen := make(map[*processState]bool)
	for _, s := range w.sources {
		p := s.process
		if seen[p] || p.accuracy == &w.accuracy {
			continue
		}
		seen[p] = true
		texts := p.accuracy.Texts()
		if len(texts) > 0 && len(all) >= maxWarned {
			return append(all, "there are such warnings about more processes: the dump of each has its own")
		}
		for _, text := range texts {
			all = append(all, fmt.Sprintf("%v: %s", p.origin, text))
		}
	}
	return all
}

// warnings returns the reasons why the source's ledger may be inaccurate. The caller holds w.mu.
func (s *Source) warnings() []string {
	texts := s.w.accuracy.Texts()
	if its := s.process.accuracy; its != &s.w.accuracy {
		texts = append(texts, its.Texts()...)
	}
	return texts
}
