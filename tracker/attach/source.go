package attach

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is what one process asked of one device, or of the driver for the host's memory.
// It answers what a *tracker.MemTracker answers. Its methods may be called from any
// goroutine, also after the watcher was closed and after the process has ended: then it is as it
// was at the end.
type Source struct {
	mu     *sync.Mutex // the watcher's
	start  time.Time   // of the watcher: times count from here
	now    func() time.Time
	origin snapshot.Origin
	device deviceID
	ledger ledger
	growth *snapshot.Follower
	marks  int
	recent []*snapshot.Mark
}

const (
	warmup   = 3   // marks that Growth leaves out
	maxMarks = 128 // kept
)

// deviceID is a device's ordinal in its process, or one of these.
type deviceID int

const (
	hostMemory    deviceID = -1
	unknownDevice deviceID = -2 // the context was made before the watcher came
)

func (d deviceID) name() string {
	switch d {
	case hostMemory:
		return "Pinned host memory"
	case unknownDevice:
		return "GPU of unknown number"
	}
	return "GPU"
}

// Origin is the process.
func (s *Source) Origin() snapshot.Origin { return s.origin }

// Device names the device as its process numbers them: "GPU", and its ordinal. Pinned
// memory of the host, and memory of a context that was there before the watcher, have a
// name of their own and the ordinal 0.
func (s *Source) Device() (name string, ordinal int) { return s.device.name(), max(0, int(s.device)) }

// Snapshot copies the ledger.
func (s *Source) Snapshot() *snapshot.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(true)
}

// LightSnapshot is a Snapshot without the single allocations.
func (s *Source) LightSnapshot() *snapshot.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(false)
}

// levels are those of the ledger: what the driver has in use besides is not known.
func (s *Source) levels() snapshot.Levels {
	l := &s.ledger
	return snapshot.Levels{
		Live: l.current, Allocated: l.current.Bytes, Registered: l.registered, Reserved: l.current.Bytes - l.registered,
		DriverUsed: -1, DriverTotal: -1,
	}
}

func (s *Source) snapshot(whole bool) *snapshot.Snapshot {
	l := &s.ledger
	name, ordinal := s.Device()
	head := snapshot.Head{
		Time: s.now(), Origin: s.origin, Device: name, Ordinal: ordinal, Levels: s.levels(), Peak: l.peak, Total: l.total, Events: l.events.next,
	}
	tables := snapshot.Tables{Stacks: l.stacks, Sections: []string{""}, Streams: l.streams, Epoch: s.start}
	index := make(map[*site]int32, len(l.sites))
	for _, its := range l.sites {
		index[its] = int32(len(tables.Sites))
		tables.Sites = append(tables.Sites, snapshot.SiteEntry{
			Place: snapshot.Place{Stack: its.stack}, Tensor: its.tensor, Live: its.live, Peak: its.atPeak(l.peaks), Total: its.total, Stream: its.stream,
		})
	}
	for stack, total := range l.retired {
		tables.Retired = append(tables.Retired, snapshot.RetiredEntry{Place: snapshot.Place{Stack: stack}, Total: total})
	}
	if !whole {
		return snapshot.New(head, tables)
	}
	tables.Allocations = make([]snapshot.AllocationEntry, 0, len(l.live))
	for b := range l.live {
		tables.Allocations = append(tables.Allocations, snapshot.AllocationEntry{
			Site: index[b.site], Foreign: b.foreign, Ptr: b.ptr, Allocated: b.size, Since: b.since, Seq: b.seq,
		})
	}
	slices.SortFunc(tables.Allocations, func(a, b snapshot.AllocationEntry) int { return cmp.Compare(a.Seq, b.Seq) })
	tables.Lifetimes = make(map[snapshot.Frame]*snapshot.Lifetimes, len(l.lifetimes))
	for line, freed := range l.lifetimes {
		its := *freed
		tables.Lifetimes[line] = &its
	}
	tables.Growing, tables.Warm = s.growth.Growing()
	return snapshot.New(head, tables)
}

// History returns the latest events.
func (s *Source) History() *snapshot.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.history()
}

func (s *Source) history() *snapshot.History {
	first, events := s.ledger.events.ordered()
	return snapshot.NewHistory(snapshot.HistoryTables{
		Start: s.start, First: first, Events: events, Stacks: s.ledger.stacks, Sections: []string{""}, Streams: s.ledger.streams,
	})
}

// Track makes a mark: what changed since the one before. No line of code called it, so
// that its Site is unknown.
func (s *Source) Track() *snapshot.Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.marks++
	m := &snapshot.Mark{Seq: s.marks, Time: now, Levels: s.levels()}
	b := snapshot.NewDeltaBuilder(len(s.ledger.changed))
	for its := range s.ledger.changed {
		change := its.tensor.Tally(its.live - its.marked)
		its.marked = its.live
		if change.Count != 0 {
			line := s.ledger.stacks.Site(its.stack)
			b.Add(its.tensor, line, change)
			s.growth.Note(line, change)
		}
	}
	clear(s.ledger.changed)
	m.Delta = b.Delta()
	s.growth.Mark(m.Seq, now.Sub(s.start))
	s.ledger.events.add(snapshot.EventEntry{Since: now.Sub(s.start), Action: snapshot.Marked, Allocated: alloc.Bytes(m.Seq)})
	if len(s.recent) == maxMarks {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, m)
	return m
}

// Marks returns the latest marks, oldest first. They are shared: do not write to them.
func (s *Source) Marks() []*snapshot.Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.recent)
}

// Leaks returns what is live, by call stack, kind and size.
func (s *Source) Leaks(opts ...snapshot.LeakOption) []snapshot.Leak {
	return s.Snapshot().Leaks(opts...)
}

// Suspects returns the lines of code with live buffers that look forgotten: see [snapshot.Snapshot.Suspects].
func (s *Source) Suspects(opts ...snapshot.LeakOption) []snapshot.Suspect {
	return s.Snapshot().Suspects(opts...)
}

// Growth returns the lines of code whose live bytes rise over the marks: see [snapshot.Snapshot.Growth].
func (s *Source) Growth() []snapshot.Growth { return s.Snapshot().Growth() }

// Record returns all that is known, of one instant: what the export packages write.
func (s *Source) Record() *snapshot.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &snapshot.Record{
		Time: s.now(), Process: snapshot.Process{PID: s.origin.PID, Path: s.origin.Program},
		Snapshot: s.snapshot(true), History: s.history(), Marks: slices.Clone(s.recent),
	}
}

// addresses returns what is live: sizes by address. Physical memory has its handle for an address.
func (s *Source) addresses() map[alloc.Ptr]alloc.Bytes {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := make(map[alloc.Ptr]alloc.Bytes, len(s.ledger.live))
	for b := range maps.Keys(s.ledger.live) {
		live[b.ptr] = b.size
	}
	return live
}
