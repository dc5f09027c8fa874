package attach

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// shared is the state that a watcher, its processes and its sources share.
type shared struct {
	start  time.Time
	clock  uint64 // the time start by the clock of the events, in ns
	driver driver
	use    atomic.Int64 // see DriverUse

	mu          sync.Mutex
	unknown     uint64 // frees of addresses that are in no ledger
	warnings    []accuracyWarning
	lost        loss
	prior       map[uint32]*priorState // of processes that ran before they were watched
	voidResults map[int]bool           // indexes of functions that return nothing according to their file
	closed      bool
}

// loss counts dropped events.
type loss struct {
	events uint64    // that the ring buffer had no room for
	since  time.Time // time of the first: the ledgers are inaccurate from then on
}

// accuracyWarning is a reason why the ledgers may be inaccurate from a moment on.
type accuracyWarning struct {
	since  time.Time
	reason string
}

const maxWarnings = 16

// warn records a reason why the ledgers may be inaccurate, once. The caller holds mu.
func (s *shared) warn(now time.Duration, reason string) {
	if len(s.warnings) < maxWarnings && !slices.ContainsFunc(s.warnings, func(d accuracyWarning) bool { return d.reason == reason }) {
		s.warnings = append(s.warnings, accuracyWarning{s.start.Add(now), reason})
	}
}

// used records what a process has done with the driver.
func (s *shared) used(u DriverUse) {
	for {
		before := s.use.Load()
		if before >= int64(u) || s.use.CompareAndSwap(before, int64(u)) {
			return
		}
	}
}

// warningTexts returns the warnings as sentences with their times.
func (s *shared) warningTexts() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const clock = "15:04:05.000"
	if s.lost.events > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost: give a larger ring buffer (--ring-buffer, Config.RingBufferBytes)", s.lost.since.Format(clock), s.lost.events))
	}
	for _, d := range s.warnings {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if s.unknown > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory that is not in the ledger: from before the process was watched, or of a function that is not watched", s.unknown))
	}
	return all
}

// sourceList is the sources of a watcher, oldest first; mu guards the list.
type sourceList struct {
	*shared
	list []*Source
}

const maxSources = 1 << 10

// add adds a source, and drops the oldest if there are too many. The caller holds mu.
func (all *sourceList) add(s *Source) {
	if len(all.list) == maxSources {
		all.list = slices.Delete(all.list, 0, 1)
		all.warn(time.Since(all.start), fmt.Sprintf("there were more than %d processes: the oldest are forgotten", maxSources))
	}
	for n := 1; s.name == "" || all.named(s.name); n++ { // an earlier process may have had the number
		s.name = fmt.Sprintf("%d-%s", s.origin.PID, s.device.short())
		if n > 1 {
			s.name += fmt.Sprintf("-%d", n)
		}
	}
	all.list = append(all.list, s)
}

func (all *sourceList) named(name string) bool {
	return slices.ContainsFunc(all.list, func(s *Source) bool { return s.name == name })
}

// sorted returns the sources, the one with the highest peak first.
func (all *sourceList) sorted() []*Source {
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
	unknownDevice deviceID = -2 // the context was made before the process was watched
	libraryMemory deviceID = -3 // memory of a library in a process that uses no device, or host memory of a library
)

// blocksOf is added to a device's ordinal for the blocks of a caching allocator, whose segments count
// under the ordinal itself.
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

// memory returns the type of memory of a source that has a single one other than device memory.
func (d deviceID) memory() alloc.Memory {
	if d == hostMemory {
		return alloc.PinnedMemory
	}
	return alloc.UnknownMemory
}

// rank orders blocks before their segments, and host memory after all devices.
func (d deviceID) rank() int {
	switch {
	case d == hostMemory:
		return 0
	case d >= blocksOf:
		return 2
	}
	return 1
}

// priorState is what a process used before it was watched.
type priorState struct {
	usage       map[deviceID]alloc.Bytes
	known       bool
	unseenCalls bool // its earlier calls were not seen: contexts may exist
}

// mayHaveContexts reports whether the process may have contexts that it made before it was watched.
func (e *priorState) mayHaveContexts() bool {
	return e != nil && e.unseenCalls && !(e.known && len(e.usage) == 0)
}

func readPriorState(d driver, pid int) *priorState {
	e := &priorState{usage: make(map[deviceID]alloc.Bytes)}
	held, err := d.Held(pid)
	for ordinal, bytes := range held {
		e.usage[deviceID(ordinal)] = bytes
	}
	e.known = err == nil
	return e
}

// device returns the device of earlier contexts: the only one that was in use then.
func (e *priorState) device() deviceID {
	if e == nil || !e.known || len(e.usage) != 1 {
		return unknownDevice
	}
	for d := range e.usage {
		return d
	}
	return unknownDevice
}

// on returns the bytes that the process used on a device; -1 if unknown.
func (e *priorState) on(d deviceID) alloc.Bytes {
	switch {
	case e == nil:
		return 0
	case !e.known || d == hostMemory || d >= blocksOf:
		return -1
	case d != unknownDevice:
		return e.usage[d]
	}
	var all alloc.Bytes
	for _, bytes := range e.usage {
		all += bytes
	}
	return all
}
