package attach

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/linked"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Watcher watches processes. Its methods may be called from any goroutine.
type Watcher struct {
	*shared
	cfg       Config
	functions []function
	feed      feed
	libraries *libraries
	pythons   *python.Processes
	sources   sources
	drained   chan struct{} // closed when all that there was is read; nil while nobody waits; the lock guards it

	syncing sync.Mutex // one Sync at a time: each waits for an answer of its own

	// For the reader alone.
	processes map[uint32]*process
	births    map[uint32]birth
	ended     chan struct{} // the reader has
}

// New prepares to watch: it loads the probes into the kernel and sets them in libcuda. It
// needs root or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, Linux 5.8 or newer, on amd64 or arm64;
// the error says what is lacking, and is fs.ErrInvalid if Config.Functions cannot be read. Config.Preload needs less. The probes are gone when the watcher is closed, and
// when this process ends in any way.
func New(cfg Config) (*Watcher, error) {
	cfg = cfg.complete()
	for _, text := range cfg.Functions {
		pair, err := parsePair(text)
		if err != nil {
			return nil, unreadable{fmt.Errorf("attach: %w", err)}
		}
		cfg.pairs = append(cfg.pairs, pair)
	}
	functions := watched(cfg.pairs)
	p, err := newFeed(cfg, functions)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	w := assemble(cfg, functions, p)
	if !cfg.Preload {
		if err := w.libraries.probeFirst(cfg.Libraries); err != nil {
			p.close()
			return nil, fmt.Errorf("attach: %w", err)
		}
		go w.libraries.search(cfg.searchEvery)
	}
	p.readSoonGone(w.pythons, w.libraries.begins)
	go w.read()
	return w, nil
}

// unreadable is the error of a setting.
type unreadable struct{ error }

func (unreadable) Is(target error) bool { return target == fs.ErrInvalid }

func assemble(cfg Config, functions []function, from feed) *Watcher {
	all := &shared{start: time.Now(), driver: newDriver(cfg.Driver), late: make(map[uint32]*earlier), silent: make(map[int]bool)}
	if from != nil {
		all.clock = monotonic()
	}
	runs := python.NewProcesses(
		func(pid int, l python.Layout) error { return from.runs(pid, l) }, func(pid int) { from.runsOther(pid) },
	)
	return &Watcher{
		shared: all, cfg: cfg, functions: functions, feed: from, pythons: runs,
		libraries: newLibraries(all, from, functions, runs), sources: sources{shared: all},
		processes: make(map[uint32]*process), births: make(map[uint32]birth), ended: make(chan struct{}),
	}
}

func newFeed(cfg Config, functions []function) (feed, error) {
	if cfg.Preload {
		s, err := newSockets(cfg, functions)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	p, err := newProbes(cfg, functions)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Watch watches a running process, and those that it started or will start. What the process
// allocated before is known only as a sum, and only if Config.Driver tells it: see Source.Before.
// Freeing such memory changes no ledger; Doubts counts these frees. The error says that there is no
// such process, or that it cannot be watched.
func (w *Watcher) Watch(pid int) error {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return fmt.Errorf("attach: there is no process %d", pid)
	}
	for _, pid := range append(descendants(pid), pid) {
		before := askHeld(w.driver, pid)
		before.unseen = true
		w.mu.Lock()
		w.late[uint32(pid)] = before
		w.mu.Unlock()
		w.libraries.add(pid)
		if err := w.feed.watch(pid); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
	}
	return w.libraries.look()
}

// Start starts a command and watches it from its first moment. With Config.Preload it adds to cmd.Env what makes the
// command load the library. Other processes that this program starts meanwhile are watched too. Start returns the error of
// cmd.Start, or one that says why the command cannot be watched.
func (w *Watcher) Start(cmd *exec.Cmd) error {
	cmd.Env = w.feed.environ(cmd.Environ())
	if !w.cfg.Preload {
		w.libraries.linked(linked.OfCommand(cmd.Path, cmd.Dir, cmd.Env), math.MaxUint64)
	}
	if err := w.feed.watch(os.Getpid()); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	err := cmd.Start()
	w.feed.forget(os.Getpid())
	return err
}

// Sync waits until the ledgers have what the processes did before the call.
func (w *Watcher) Sync() {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	done := make(chan struct{})
	w.mu.Lock()
	w.drained = done
	w.mu.Unlock()
	if w.feed.flush() != nil {
		return // the watcher is closed, and has read all
	}
	select {
	case <-done:
	case <-w.ended:
	}
}

// Sources returns a copy of the list of ledgers, the one with the highest peak first.
func (w *Watcher) Sources() []*Source { return w.sources.sorted() }

// String says how many sources there are.
func (w *Watcher) String() string {
	if w.shared == nil {
		return "no watcher: New makes one"
	}
	return fmt.Sprintf("watcher, sources: %d", len(w.Sources()))
}

// Doubts returns the reasons why the ledgers may not be exact, one sentence each, and since when.
// An empty list means that they are exact: every call of the driver's functions was seen, in order.
func (w *Watcher) Doubts() (all []string) { return w.sentences() }

// Dump returns all that is known of the first of Sources, with the dumps of the others as its
// Others. It is nil if nothing called the driver. Its Reason has the Doubts.
func (w *Watcher) Dump() *snapshot.Dump {
	var first *snapshot.Dump
	for _, s := range w.Sources() {
		r := s.Dump()
		if first == nil {
			first = r
			continue
		}
		first.Others = append(first.Others, r)
	}
	return first
}

// Close takes the probes away. What the watcher and its sources know stays. The error is
// always nil, and a second Close does nothing.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	for _, s := range w.sources.list {
		s.wake()
	}
	w.mu.Unlock()
	w.Sync() // the programs that have begun are looked at
	for _, library := range w.libraries.stop() {
		w.mu.Lock()
		w.doubt(0, library+" was found nowhere: not where the dynamic loader looks, and in no process that was watched. Name its path (--functions, Config.Functions)")
		w.mu.Unlock()
	}
	w.feed.detach()
	w.Sync()
	w.feed.interrupt()
	<-w.ended
	w.feed.close()
	return nil
}
