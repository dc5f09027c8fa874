package attach

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// shared is what a watcher, its processes and its sources share.
type shared struct {
	start  time.Time
	clock  uint64 // the clock of the events, at start
	driver driver

	mu      sync.Mutex
	unknown uint64 // frees of addresses that nobody allocated here
	doubts  []doubt
	lost    loss
	late    map[uint32]*earlier // the processes that ran before they were watched
	silent  map[int]bool        // the functions, by index, that return nothing though nobody said so
	closed  bool
}

// loss says what the ledgers lack.
type loss struct {
	events uint64    // events for which the ring had no room
	since  time.Time // when the first event was lost; the ledgers are not exact from then on
}

// doubt is why the ledgers may not be exact from a moment on.
type doubt struct {
	since  time.Time
	reason string
}

const maxDoubts = 16

// doubt notes, once, why the ledgers may not be exact; the caller holds mu.
func (s *shared) doubt(now time.Duration, reason string) {
	if len(s.doubts) < maxDoubts && !slices.ContainsFunc(s.doubts, func(d doubt) bool { return d.reason == reason }) {
		s.doubts = append(s.doubts, doubt{s.start.Add(now), reason})
	}
}

// sentences are the doubts, and from when on they are.
func (s *shared) sentences() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const clock = "15:04:05.000"
	if s.lost.events > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost: give a larger ring (--ring, Config.RingBytes)", s.lost.since.Format(clock), s.lost.events))
	}
	for _, d := range s.doubts {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if s.unknown > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory that is not in the ledger: from before the process was watched, or of a function that is not watched", s.unknown))
	}
	return all
}

// sources are the sources of a watcher, oldest first; the lock guards the list.
type sources struct {
	*shared
	list []*Source
}

const maxSources = 1 << 10

// keep enters a source, and forgets the oldest if there are too many. The caller holds the lock.
func (all *sources) keep(s *Source) {
	if len(all.list) == maxSources {
		all.list = slices.Delete(all.list, 0, 1)
		all.doubt(time.Since(all.start), fmt.Sprintf("there were more than %d processes: the oldest are forgotten", maxSources))
	}
	for n := 1; s.name == "" || all.named(s.name); n++ { // an earlier process may have had the number
		s.name = fmt.Sprintf("%d-%s", s.origin.PID, s.device.short())
		if n > 1 {
			s.name += fmt.Sprintf("-%d", n)
		}
	}
	all.list = append(all.list, s)
}

func (all *sources) named(name string) bool {
	return slices.ContainsFunc(all.list, func(s *Source) bool { return s.name == name })
}

// sorted returns the sources, the one with the highest peak first.
func (all *sources) sorted() []*Source {
	all.mu.Lock()
	defer all.mu.Unlock()
	list := slices.Clone(all.list)
	slices.SortStableFunc(list, func(a, b *Source) int {
		return cmp.Or(cmp.Compare(b.device.rank(), a.device.rank()), cmp.Compare(b.ledger.peak.Bytes, a.ledger.peak.Bytes))
	})
	return list
}

// deviceID is a device's ordinal in its process, or one of these.
type deviceID int

const (
	hostMemory    deviceID = -1
	unknownDevice deviceID = -2 // the context was made before the watcher came
	libraryMemory deviceID = -3 // memory of a library, in a process that has not asked for any device, or of the host alone
)

// blocksOf is the first of the devices' numbers where they stand for the blocks of segments that are themselves the device's.
const blocksOf deviceID = 1 << 16

// ordinal is the device's number in its process; 0 if it has none.
func (d deviceID) ordinal() int {
	if d >= blocksOf {
		d -= blocksOf
	}
	return max(0, int(d))
}

func (d deviceID) name() string {
	if d >= blocksOf {
		return "PyTorch's blocks, GPU"
	}
	switch d {
	case hostMemory:
		return "Pinned host memory"
	case unknownDevice:
		return "GPU of unknown number"
	case libraryMemory:
		return "Memory of a library"
	}
	return "GPU"
}

// short is the device in a source's name.
func (d deviceID) short() string {
	if d >= blocksOf {
		return fmt.Sprintf("gpu%d-blocks", d.ordinal())
	}
	switch d {
	case hostMemory:
		return "host"
	case unknownDevice:
		return "gpu"
	case libraryMemory:
		return "library"
	}
	return fmt.Sprintf("gpu%d", int(d))
}

// memory returns the type of memory of a source that has only one type other than the device's.
func (d deviceID) memory() alloc.Memory {
	if d == hostMemory {
		return alloc.PinnedMemory
	}
	return alloc.UnknownMemory
}

// rank sorts blocks before the segments that they are parts of, and the host's memory behind the devices.
func (d deviceID) rank() int {
	switch {
	case d == hostMemory:
		return 0
	case d >= blocksOf:
		return 2
	}
	return 1
}

// earlier is the memory that a process used on its devices before it was watched.
type earlier struct {
	held   map[deviceID]alloc.Bytes
	known  bool
	unseen bool // nor were its calls of the driver, those that make contexts among them
}

// mayHaveContexts tells if the process may have contexts that nobody saw it make.
func (e *earlier) mayHaveContexts() bool {
	return e != nil && e.unseen && !(e.known && len(e.held) == 0)
}

func askHeld(d driver, pid int) *earlier {
	e := &earlier{held: make(map[deviceID]alloc.Bytes)}
	held, err := d.Held(pid)
	for ordinal, bytes := range held {
		e.held[deviceID(ordinal)] = bytes
	}
	e.known = err == nil
	return e
}

// device is where contexts from before must be: on the only device that was in use then.
func (e *earlier) device() deviceID {
	if e == nil || !e.known || len(e.held) != 1 {
		return unknownDevice
	}
	for d := range e.held {
		return d
	}
	return unknownDevice
}

// on returns the bytes that the process used on a device, -1 if unknown.
func (e *earlier) on(d deviceID) alloc.Bytes {
	switch {
	case e == nil:
		return 0
	case !e.known || d == hostMemory || d >= blocksOf:
		return -1
	case d != unknownDevice:
		return e.held[d]
	}
	var all alloc.Bytes
	for _, bytes := range e.held {
		all += bytes
	}
	return all
}
