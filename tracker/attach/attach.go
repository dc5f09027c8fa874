package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config says how to watch. The zero Config is a good one.
type Config struct {
	// Libraries are the files of libcuda to probe. Nil is those that a program on this
	// machine would find; others are found in what the processes have loaded.
	Libraries []string
	// Functions are watched in place of the driver's, for what an allocator inside a library
	// does. The driver's then tell only of contexts.
	Functions []Pair
	// Preload puts a small library in front of libcuda instead of setting probes. It needs no
	// rights and a C compiler, and watches only what is started with Watcher.Environ.
	Preload bool
	// RingBytes is the room for events that were not read yet; it is rounded up to a power
	// of two. An event with its call stack takes 664 bytes. 0 is 32 MiB.
	RingBytes int
	// MaxEvents is how many events the history of a source keeps; 0 is 65,536.
	MaxEvents int
	// Driver tells how much memory the devices and the processes have in use. Without one that
	// is not known: levels have -1, and so has Source.Before.
	Driver Driver
	// MaxStacks is how many different call stacks of a process are kept; 0 is 65,536.
	MaxStacks int

	single bool // one probe at a time, as kernels before 6.6 need it: for tests
}

const (
	defaultRing   = 32 << 20
	defaultEvents = 1 << 16
	defaultStacks = 1 << 16
	minRing       = 1 << 16
)

// Watcher watches processes. Its methods may be called from any goroutine.
type Watcher struct {
	cfg       Config
	functions []function
	feed      feed
	start     time.Time
	clock     uint64 // of the events, at start

	mu      sync.Mutex
	sources []*Source
	unknown uint64 // frees of addresses that nobody allocated here
	doubts  []doubt
	lost    Loss
	drained chan struct{} // closed when all that there was is read; nil while nobody waits
	closed  bool

	syncing sync.Mutex // one Sync at a time: each waits for an answer of its own

	// The reader's.
	processes map[uint32]*process
	births    map[uint32]birth
	late      map[uint32]*earlier // of those that ran before they were watched; guarded by mu
	ended     chan struct{}       // the reader has

	libraries libraries
}

// doubt is why the ledgers may not be exact from a moment on.
type doubt struct {
	since  time.Time
	reason string
}

var errFlushed = errors.New("all events that there were have been read")

// New prepares to watch: it loads the probes into the kernel and sets them in libcuda. It
// needs root or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, Linux 5.8 or newer, on amd64 or arm64;
// the error says what is lacking. Config.Preload needs less. The probes are gone when the watcher is closed, and
// when this process ends in any way.
func New(cfg Config) (*Watcher, error) {
	cfg.RingBytes = powerOfTwo(max(minRing, cmp.Or(cfg.RingBytes, defaultRing)))
	cfg.MaxEvents = cmp.Or(cfg.MaxEvents, defaultEvents)
	cfg.MaxStacks = cmp.Or(cfg.MaxStacks, defaultStacks)
	if cfg.Driver == nil {
		cfg.Driver = nobody{}
	}
	for _, pair := range cfg.Functions {
		if err := pair.check(); err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
	}
	functions := watched(cfg.Functions)
	p, err := newFeed(cfg, functions)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	w := &Watcher{
		cfg: cfg, functions: functions, feed: p, start: time.Now(), clock: monotonic(),
		processes: make(map[uint32]*process), births: make(map[uint32]birth), late: make(map[uint32]*earlier), ended: make(chan struct{}),
	}
	w.libraries.init(functions)
	if cfg.Preload {
		w.cfg.Libraries = nil // they are the library's to load
	} else if err := w.probeFirst(); err != nil {
		p.close()
		return nil, fmt.Errorf("attach: %w", err)
	}
	go w.read()
	if !cfg.Preload {
		go w.search()
	}
	return w, nil
}

// feed is where events come from: probes in the kernel, or a library in the programs.
type feed interface {
	watch(pid int) error                // and what it will start
	forget(pid int)                     // but not what it has started
	library(path, library string) error // probes a file
	next(e *event) error                // waits for an event; errFlushed, os.ErrClosed
	flush() error                       // has next return errFlushed when it has all that is there now
	lost() (count, since uint64)        // events, and when the first was
	environ(env []string) []string      // for what is to be watched
	detach()                            // no event is to come any more
	interrupt()                         // has next return os.ErrClosed
	close()
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

// Environ returns the environment of a program that is to be watched: env itself, or with
// Config.Preload what has the program load the library. It is for exec.Cmd.Env.
func (w *Watcher) Environ(env []string) []string { return w.feed.environ(env) }

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// Watch watches a process that runs, and those that it started or will start. What it
// allocated before is not known but in sum, if Config.Driver tells: see Source.Before. Frees
// of it are counted by Unknown. The error says that there is no such process, or that it
// cannot be watched.
func (w *Watcher) Watch(pid int) error {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return fmt.Errorf("attach: there is no process %d", pid)
	}
	for _, pid := range append(descendants(pid), pid) {
		before := askHeld(w.cfg.Driver, pid)
		w.mu.Lock()
		w.late[uint32(pid)] = before
		w.mu.Unlock()
		w.libraries.add(pid)
		if err := w.feed.watch(pid); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
	}
	return w.find()
}

// Start calls start, which starts a process, such as the method of an *exec.Cmd, and watches
// it from its first moment. Other processes that this program starts meanwhile are watched
// too. With Config.Preload the process needs the environment that Environ returns. The error is
// start's, or says that the process cannot be watched.
func (w *Watcher) Start(start func() error) error {
	if err := w.feed.watch(os.Getpid()); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	err := start()
	w.feed.forget(os.Getpid())
	return err
}

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
		delete(w.processes, uint32(e.args[0])) // an earlier one of that number, whose end was lost
		w.born(uint32(e.args[0]))
		return
	case execed:
		w.born(e.pid)
		w.mu.Lock()
		delete(w.late, e.pid)
		w.mu.Unlock()
		if p := w.processes[e.pid]; p != nil {
			p.late = nil
			p.exec(now)
		}
		return
	case exited:
		if p := w.processes[e.pid]; p != nil {
			delete(p.threads, e.tid)
		}
		if e.args[0] == 1 {
			w.libraries.remove(int(e.pid))
			w.mu.Lock()
			delete(w.late, e.pid)
			if p := w.processes[e.pid]; p != nil {
				p.end(now)
			}
			w.mu.Unlock()
			delete(w.births, e.pid)
			delete(w.processes, e.pid) // its sources stay: another process may get the number
		}
		return
	}
	if int(e.function) >= len(w.functions) {
		return
	}
	p := w.processes[e.pid]
	if p == nil {
		w.mu.Lock()
		late := w.late[e.pid]
		w.mu.Unlock()
		p = newProcess(w, int(e.pid), late)
		w.processes[e.pid] = p
	}
	p.call(e, now)
}

// birth is what a process was made of at its start: it may be gone when its first event is read.
type birth struct {
	origin snapshot.Origin
	maps   []mapping
}

func (w *Watcher) born(pid uint32) {
	w.libraries.add(int(pid))
	if mappings, err := readMaps(int(pid)); err == nil && len(mappings) > 0 {
		w.births[pid] = birth{originOf(int(pid)), mappings}
	}
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

// Sources returns the ledgers that there are by now, those that held most bytes at a time first.
func (w *Watcher) Sources() []*Source {
	w.mu.Lock()
	defer w.mu.Unlock()
	sources := slices.Clone(w.sources)
	slices.SortStableFunc(sources, func(a, b *Source) int {
		return cmp.Or(cmp.Compare(b.device.rank(), a.device.rank()), cmp.Compare(b.ledger.peak.Bytes, a.ledger.peak.Bytes))
	})
	return sources
}

// rank puts the host's memory behind that of devices.
func (d deviceID) rank() int {
	if d == hostMemory {
		return 0
	}
	return 1
}

// Loss is what the ledgers lack.
type Loss struct {
	Events uint64    // for which the ring had no room
	Since  time.Time // when the first was lost; from then on the ledgers are not exact
}

// Lost returns what was lost until the last Sync.
func (w *Watcher) Lost() Loss {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// count reads the kernel's counters; the caller holds w.mu.
func (w *Watcher) count() {
	if count, since := w.feed.lost(); count > 0 {
		w.lost = Loss{Events: count, Since: w.start.Add(time.Duration(int64(since - w.clock)))}
	}
}

// Unknown returns how many frees there were of addresses that were not allocated while
// watching. They are not believed.
func (w *Watcher) Unknown() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknown
}

const maxSources = 1 << 10

// keep enters a source; of very many it forgets the oldest. The caller holds w.mu.
func (w *Watcher) keep(s *Source) {
	if len(w.sources) == maxSources {
		w.sources = slices.Delete(w.sources, 0, 1)
		w.doubt(time.Since(w.start), fmt.Sprintf("there were more than %d processes: the oldest are forgotten", maxSources))
	}
	for n := 1; s.name == "" || w.named(s.name); n++ { // an earlier process may have had the number
		s.name = fmt.Sprintf("%d-%s", s.origin.PID, s.device.short())
		if n > 1 {
			s.name += fmt.Sprintf("-%d", n)
		}
	}
	w.sources = append(w.sources, s)
}

func (w *Watcher) named(name string) bool {
	return slices.ContainsFunc(w.sources, func(s *Source) bool { return s.name == name })
}

const maxDoubts = 16

// doubt notes, once, why the ledgers may not be exact; the caller holds w.mu.
func (w *Watcher) doubt(now time.Duration, reason string) {
	if len(w.doubts) < maxDoubts && !slices.ContainsFunc(w.doubts, func(d doubt) bool { return d.reason == reason }) {
		w.doubts = append(w.doubts, doubt{w.start.Add(now), reason})
	}
}

// Doubts returns, a sentence each, why the ledgers may not be exact, and from when on. None
// means that they are: every call of the driver's functions was seen, in its order.
func (w *Watcher) Doubts() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const clock = "15:04:05.000"
	if w.lost.Events > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost, give a larger ring", w.lost.Since.Format(clock), w.lost.Events))
	}
	for _, d := range w.doubts {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if w.unknown > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory from before: what a process held then is not in the ledger, but untracked", w.unknown))
	}
	return all
}

// Record returns all that is known: of the first of Sources, and of the others in its
// Others. It is nil if nothing called the driver. Its Reason says what of Doubts there is.
func (w *Watcher) Record() *snapshot.Record {
	var first *snapshot.Record
	for _, s := range w.Sources() {
		r := s.Record()
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
	for _, s := range w.sources {
		s.wake()
	}
	w.mu.Unlock()
	w.libraries.stop()
	w.feed.detach()
	w.Sync()
	w.feed.interrupt()
	<-w.ended
	w.feed.close()
	return nil
}
