package attach

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/linked"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/preload"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/process"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// sharedHeaders are the C headers that both the kernel's programs and the shim library include.
//
//go:embed bpf/event.h bpf/python.h bpf/stack.h
var sharedHeaders embed.FS

// Watcher watches processes. Its methods may be called from any goroutine.
type Watcher struct {
	cfg       Config
	functions []event.Function
	events    event.Source
	discovery *process.Discovery
	pythons   *python.Processes
	driver    ledger.Driver
	start     time.Time
	clock     uint64       // the time start by the clock of the events, in ns
	use       atomic.Int64 // see DriverUse
	syncing   sync.Mutex   // serializes Sync: each call waits for its own flush

	mu             sync.Mutex // guards what follows, and all ledgers
	accuracy       ledger.Accuracy
	prior          map[uint32]*ledger.Prior // of processes that ran before they were watched
	returnsNothing map[int]bool             // indexes of functions that return nothing according to their file
	sources        []*Source                // oldest first
	all            allProcesses
	closed         bool
	drained        chan struct{} // closed when all earlier events are read; nil if no Sync waits

	// Used by the reader only.
	tree      *process.Tree
	processes map[uint32]*watchedProcess
	ended     chan struct{} // closed when the reader returns
}

// New prepares to watch: it loads the probes into the kernel and attaches them to libcuda. It needs
// root or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, and Linux 5.8 or newer on amd64 or arm64; the
// error names what is missing. Config.Preload needs no privileges. The error is fs.ErrInvalid if
// Config.Functions cannot be parsed. The probes are removed when the watcher is closed, and when
// this process ends in any way.
func New(cfg Config) (*Watcher, error) {
	cfg = cfg.complete()
	for _, text := range cfg.Functions {
		pair, err := event.ParsePair(text)
		if err != nil {
			return nil, unreadable{fmt.Errorf("attach: %w", err)}
		}
		cfg.pairs = append(cfg.pairs, pair)
	}
	functions := event.Watched(cfg.pairs)
	p, err := newEventSource(cfg, functions)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if cfg.wrap != nil {
		p = cfg.wrap(p)
	}
	w := assemble(cfg, functions, p)
	if !cfg.Preload {
		if err := w.discovery.ProbeFirst(cfg.Libraries); err != nil {
			p.Close()
			return nil, fmt.Errorf("attach: %w", err)
		}
		go w.discovery.ScanLoop(cfg.searchEvery)
	}
	p.ReadExecs(w.programStarted, w.awaitInterpreter)
	go w.read()
	return w, nil
}

// unreadable is the error of a setting that cannot be parsed.
type unreadable struct{ error }

func (unreadable) Is(target error) bool { return target == fs.ErrInvalid }

func assemble(cfg Config, functions []event.Function, from event.Source) *Watcher {
	w := &Watcher{
		cfg: cfg, functions: functions, events: from, driver: ledger.NewDriver(cfg.Driver), start: time.Now(), clock: event.Now(),
		pythons: python.NewProcesses(from.SetPythonLayout, from.ClearPythonLayout),
		prior:   make(map[uint32]*ledger.Prior), returnsNothing: make(map[int]bool),
		processes: make(map[uint32]*watchedProcess), ended: make(chan struct{}),
	}
	w.accuracy.Start = w.start
	w.discovery = process.NewDiscovery(discoveries{w}, from, functions, w.pythons)
	w.tree = process.NewTree(from, w.discovery, w.pythons)
	return w
}

func newEventSource(cfg Config, functions []event.Function) (event.Source, error) {
	if cfg.Preload {
		paths := cfg.Libraries
		if paths == nil {
			paths = linked.DefaultLibraries("libcuda.so.1")
		}
		s, err := preload.New(paths, functions, sharedHeaders, cfg.shimWaitMS)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	p, err := probes.New(functions, cfg.RingBufferBytes, cfg.oldest)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Watch watches a running process and its descendants. What a process allocated before is known
// only as a sum, and only with Config.Driver: see Source.PriorBytes. Frees of such memory change no
// ledger; Warnings counts them. The error says that there is no such process, or that it cannot be
// watched.
func (w *Watcher) Watch(pid int) error {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return fmt.Errorf("attach: there is no process %d", pid)
	}
	for _, pid := range append(procfs.Descendants(pid), pid) {
		before := ledger.ReadPrior(w.driver, pid)
		before.UnseenCalls = true
		w.mu.Lock()
		w.prior[uint32(pid)] = before
		w.mu.Unlock()
		w.discovery.Add(pid)
		if err := w.events.Watch(pid); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
	}
	return w.discovery.Scan()
}

// Start starts a command and watches it from its first instruction. With Config.Preload it adds to
// cmd.Env what makes the command load the library. Other processes that this program starts in the
// meantime are watched too. The error is cmd.Start's, or says why the command cannot be watched.
func (w *Watcher) Start(cmd *exec.Cmd) error {
	cmd.Env = w.events.Environ(cmd.Environ())
	if !w.cfg.Preload {
		w.discovery.ProbeLinked(linked.OfCommand(cmd.Path, cmd.Dir, cmd.Env), math.MaxUint64)
	}
	if err := w.events.Watch(os.Getpid()); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	err := cmd.Start()
	w.events.Unwatch(os.Getpid())
	return err
}

// Sync waits until the ledgers include everything that the processes did before the call.
func (w *Watcher) Sync() {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	done := make(chan struct{})
	w.mu.Lock()
	w.drained = done
	w.mu.Unlock()
	if w.events.Flush() != nil {
		return // the watcher is closed, and has read all
	}
	select {
	case <-done:
	case <-w.ended:
	}
}

// Sources returns a copy of the list of sources, the one with the highest peak first.
func (w *Watcher) Sources() []*Source {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.Clone(w.sources)
	slices.SortStableFunc(list, func(a, b *Source) int {
		return cmp.Or(cmp.Compare(b.device.Rank(), a.device.Rank()), cmp.Compare(b.ledger.Peak().Bytes, a.ledger.Peak().Bytes))
	})
	return list
}

const maxSources = 1 << 10

// addSource adds a source, and drops the oldest if there are too many. The caller holds mu.
func (w *Watcher) addSource(s *Source) {
	w.dropEnded(maxSources - 1)
	if len(w.sources) == maxSources {
		w.sources = slices.Delete(w.sources, 0, 1)
		w.accuracy.Warn(time.Since(w.start), fmt.Sprintf("there were more than %d processes: the oldest are forgotten", maxSources))
	}
	taken := func(other *Source) bool { return other.name == s.name }
	s.name = fmt.Sprintf("%d-%s", s.process.origin.PID, s.device.Short())
	for n, name := 2, s.name; slices.ContainsFunc(w.sources, taken); n++ { // an earlier process may have had the number
		s.name = fmt.Sprintf("%s-%d", name, n)
	}
	w.sources = append(w.sources, s)
}

// String returns the number of sources.
func (w *Watcher) String() string {
	if w.events == nil {
		return "no watcher: New makes one"
	}
	return fmt.Sprintf("watcher, sources: %d", len(w.Sources()))
}

// Warnings returns the reasons why the ledgers may be inaccurate, one sentence each, with the time
// from which on it applies. An empty list means that they are exact: every call of the watched
// functions was seen, in order.
func (w *Watcher) Warnings() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(w.accuracy.Texts(), w.processWarnings()...)
}

// DriverUse returns the furthest that any of the processes has gone, those that have ended included.
// It tells a program that allocated nothing from one that never loaded libcuda. Without
// Config.Preload, NotLoaded may be wrong for a program that opened libcuda by dlopen, called
// neither cuInit nor cuGetProcAddress, and ended within a tenth of a second.
func (w *Watcher) DriverUse() DriverUse { return DriverUse(w.use.Load()) }

// Dump returns the dump of the first source, with those of the others as its Others; nil if no
// process has called the driver. Its Reason includes the Warnings.
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

// Close removes the probes. The watcher and its sources keep what they know. The error is always
// nil, and a second Close does nothing.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	for _, s := range w.sources {
		s.wake()
	}
	w.mu.Unlock()
	w.Sync() // programs that have started are scanned first
	for _, library := range w.discovery.Stop() {
		w.mu.Lock()
		w.accuracy.Warn(0, library+" was found nowhere: not where the dynamic loader looks, and in no process that was watched. Name its path (--functions, Config.Functions)")
		w.mu.Unlock()
	}
	w.events.Detach()
	w.Sync()
	w.events.Interrupt()
	<-w.ended
	w.events.Close()
	return nil
}
