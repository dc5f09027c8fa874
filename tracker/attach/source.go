package attach

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is the per-device view of a process: the memory that it allocated on one device, or on the
// host through the driver. It has the reading methods of a *tracker.MemTracker. Any goroutine may call
// its methods. After the end of the process or the watcher it stays as it was.
type Source struct {
	*shared    // its mu guards the fields below
	name       string
	now        func() time.Time
	ended      bool
	priorBytes alloc.Bytes
	origin     snapshot.Origin
	device     deviceID
	uuid       string // "" until known
	ledger     ledger
	siblings   map[deviceID]*Source // all sources of the process
	marks      int
	recent     []*snapshot.Mark
	marked     chan struct{} // closed at the next mark or at the end; nil if no WaitMark waits
}

const (
	maxMarks = 128 // kept
)

// Name returns the process and the device in characters that are valid in a path, such as
// "4711-gpu0". Each source of a watcher has another name.
func (s *Source) Name() string { return s.name }

// String names the source and says what is live: "4711-gpu0: 41 buffers, 145.0 MiB live, peak 146.8 MiB".
func (s *Source) String() string {
	if s.shared == nil {
		return "no source: a Watcher makes them"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%s: %v live, peak %v", s.name, s.ledger.current, s.ledger.peak.Bytes)
}

// Origin returns the process, with the program that it runs now, or ran last.
func (s *Source) Origin() snapshot.Origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin
}

// Device returns the device's name and number as the process counts them: "GPU" and its ordinal.
// Pinned host memory, and memory of a context from before the watcher, have a name of their own and
// the ordinal 0. The blocks of a caching allocator are "PyTorch's blocks, GPU", with the ordinal of the
// device, and Levels.Reserved is the size of the segments. Pinned memory counts in Levels.Memory and
// Levels.HostReserved and in no total of a device, as in a tracker.
func (s *Source) Device() (name string, ordinal int) { return s.device.name(), s.device.ordinal() }

// PriorBytes returns what the process used on the device when watching began, contexts included, as
// the driver reports it. It is in no ledger. -1 means unknown; it is 0 for a process that was watched
// from its start.
func (s *Source) PriorBytes() alloc.Bytes { return s.priorBytes }

// Snapshot copies the ledger.
func (s *Source) Snapshot() *snapshot.Snapshot {
	used, total := s.driver()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(true, s.levels(used, total))
}

// LightSnapshot returns a Snapshot without the single allocations.
func (s *Source) LightSnapshot() *snapshot.Snapshot {
	used, total := s.driver()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(false, s.levels(used, total))
}

// driver asks the driver how much of the device all processes use; -1 is unknown. It also asks for the
// device's UUID until that is known. The caller must not hold mu, because a driver may be slow.
func (s *Source) driver() (used, total alloc.Bytes) {
	if s.device < 0 || s.hasEnded() {
		return -1, -1
	}
	s.askUUID()
	used, total, err := s.shared.driver.Memory(s.origin.PID, s.device.ordinal())
	if err != nil {
		return -1, -1
	}
	return used, total
}

func (s *Source) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *Source) askUUID() {
	s.mu.Lock()
	known := s.uuid != ""
	s.mu.Unlock()
	if known {
		return
	}
	uuid, err := s.shared.driver.UUID(s.origin.PID, s.device.ordinal())
	if err != nil {
		return
	}
	s.mu.Lock()
	s.uuid = uuid
	s.mu.Unlock()
}

// levels returns the ledger's levels with the driver's values.
func (s *Source) levels(used, total alloc.Bytes) snapshot.Levels {
	l := &s.ledger
	reserved := l.current.Bytes - l.registered
	if segments := s.siblings[s.device-blocksOf]; segments != nil { // the segments are what the driver allocated
		reserved = max(reserved, segments.ledger.current.Bytes-segments.ledger.registered)
	}
	levels := snapshot.Levels{
		Live: l.current, Allocated: l.current.Bytes, Registered: l.registered, Memory: l.byMemory.Map(), Reserved: reserved,
		DriverUsed: used, DriverTotal: total,
	}
	levels.HostReserved = levels.Host().Bytes
	return levels
}

func (s *Source) snapshot(whole bool, levels snapshot.Levels) *snapshot.Snapshot {
	l := &s.ledger
	name, ordinal := s.Device()
	at := &snapshot.Snapshot{
		Time: s.now(), Origin: s.origin, Device: name, Ordinal: ordinal, UUID: s.uuid, Levels: levels, Peak: l.peak, Total: l.total, Events: l.events.next,
	}
	lists := tables.Of(&at.Tables)
	*lists = tables.Tables{Stacks: l.stacks, Sections: []string{""}, Streams: l.streams, Epoch: s.start}
	index := make(map[*site]int32, len(l.sites))
	for _, its := range l.sites {
		index[its] = int32(len(lists.Sites))
		lists.Sites = append(lists.Sites, tables.SiteEntry{
			Place: tables.Place{Stack: its.stack}, Tensor: its.tensor, Live: its.live, Peak: its.atPeak(l.peakCount), Total: its.total, Stream: its.stream,
		})
	}
	for stack, total := range l.retired {
		lists.Retired = append(lists.Retired, tables.RetiredEntry{Place: tables.Place{Stack: stack}, Memory: s.device.memory(), Total: total})
	}
	if !whole {
		return at
	}
	lists.Allocations = make([]tables.AllocationEntry, 0, len(l.live))
	for _, b := range l.live {
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{
			Site: index[b.site], Foreign: b.foreign, Ptr: b.ptr, Allocated: b.size, Since: b.since, Seq: b.seq, InLine: b.inLine, InPath: b.inPath,
		})
	}
	slices.SortFunc(lists.Allocations, func(a, b tables.AllocationEntry) int { return cmp.Compare(a.Seq, b.Seq) })
	l.copyLifetimes(lists)
	return at
}

func (s *Source) history() tables.HistoryTables {
	first, events := s.ledger.events.ordered()
	return tables.HistoryTables{
		Start: s.start, First: first, Events: events, Stacks: s.ledger.stacks, Sections: []string{""}, Streams: s.ledger.streams,
	}
}

// Track makes a mark: what changed since the previous one. Its CallSite is unknown, since no line of
// the process called Track.
func (s *Source) Track() *snapshot.Mark {
	used, total := s.driver()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.marks++
	m := &snapshot.Mark{Seq: s.marks, Time: now, Levels: s.levels(used, total)}
	var delta snapshot.DeltaBuilder
	delta.Grow(len(s.ledger.changed))
	for _, its := range s.ledger.changed {
		its.changed = false
		change := its.tensor.Tally(its.live - its.marked)
		its.marked = its.live
		if change.Count != 0 {
			x := its.tensor
			delta.Add(snapshot.Group{Kind: x.Kind, DType: x.DType, Shape: x.Shape, Memory: x.Memory}, s.ledger.stacks.Site(its.stack), change)
		}
	}
	clear(s.ledger.changed) // they may be retired
	s.ledger.changed = s.ledger.changed[:0]
	m.Delta = delta.Delta()
	s.ledger.events.add(tables.EventEntry{Since: now.Sub(s.start), Action: mem.Marked, Allocated: alloc.Bytes(m.Seq)})
	if len(s.recent) == maxMarks {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, m)
	s.wake()
	return m
}

// wake wakes every WaitMark. The caller holds mu.
func (s *Source) wake() {
	if s.marked != nil {
		close(s.marked)
		s.marked = nil
	}
}

// WaitMark returns the oldest mark kept whose Seq is above after, and waits for one if there
// is none. The error is the context's, or alloc.ErrClosed when the process has ended or the
// watcher is closed.
func (s *Source) WaitMark(ctx context.Context, after int) (*snapshot.Mark, error) {
	for {
		m, marked, err := s.markAfter(after)
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-marked:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a mark: %w", ctx.Err())
		}
	}
}

// markAfter returns the next mark, or a channel that is closed when there may be one.
func (s *Source) markAfter(seq int) (*snapshot.Mark, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.recent {
		if m.Seq > seq {
			return m, nil, nil
		}
	}
	if s.ended || s.closed {
		return nil, nil, fmt.Errorf("wait for a mark: %v is not watched any more: %w", s.origin, alloc.ErrClosed)
	}
	if s.marked == nil {
		s.marked = make(chan struct{})
	}
	return nil, s.marked, nil
}

// Dump returns all that is known at one instant, for the export packages. If the ledger may be
// inaccurate, Reason has the watcher's Warnings.
func (s *Source) Dump() *snapshot.Dump {
	reason := strings.Join(append([]string{"attach"}, s.warningTexts()...), "; ")
	used, total := s.driver()
	s.mu.Lock()
	defer s.mu.Unlock()
	return &snapshot.Dump{
		Reason: reason, Build: &debug.BuildInfo{Path: s.origin.Program},
		Snapshot: s.snapshot(true, s.levels(used, total)), Marks: slices.Clone(s.recent),
		History: tables.WrapHistory(s.history()),
	}
}

// addresses returns the sizes of live buffers by address; that of physical memory is its handle.
func (s *Source) addresses() map[alloc.Ptr]alloc.Bytes {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := make(map[alloc.Ptr]alloc.Bytes, len(s.ledger.live))
	for _, b := range s.ledger.live {
		live[b.ptr] = b.size
	}
	return live
}
