// Package ledger keeps what a process holds on each device: a Process applies the calls of the watched
// functions to a Ledger for each device. It reads no files, and knows neither stacks nor devices but by their
// numbers.
package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Ledger holds the live buffers of a process on one device, and the totals of freed ones. It is not safe for
// use by several goroutines: the caller has a lock.
type Ledger struct {
	stacks  *symbols.StackTable
	tensors map[tensorKey]*tables.Tensor
	sites   map[siteKey]*site
	sweep   int // with this many call sites, those without live buffers are retired
	retired map[tables.StackID]mem.Tally
	streams []alloc.Stream // the first is the default one
	changed []*site        // since the last mark

	live                 []*buffer       // in any order
	current, peak, total mem.Tally       // without host memory, as in a tracker
	byMemory             tables.ByMemory // host memory included
	registered           alloc.Bytes
	peakCount            uint64 // number of new peaks so far

	units  survival.Units
	lines  map[mem.Frame]*survival.Unit
	paths  pathTable
	events eventRing
}

type tensorKey struct {
	kind   mem.Kind
	memory alloc.Memory
	each   alloc.Bytes
}

type siteKey struct {
	tensor *tables.Tensor
	stack  tables.StackID
	stream uint8
}

// site is the buffers of one size, kind, memory and stream that one call stack allocated.
//
// A site saves its live count when it first changes after a peak of the ledger. So a new peak needs
// no walk over all sites.
type site struct {
	siteKey
	live, total int64
	marked      int64  // live at the last mark
	peakSeen    uint64 // ledger.peakCount when the site last changed
	liveAtPeak  int64  // live at that peak
	changed     bool   // it is in ledger.changed
	index       int32  // in the latest copy
}

// path counts the buffers of a call stack, and those of its call site's line.
type path struct {
	survival.Unit
	line *survival.Unit
}

// pathTable is the paths by StackID. IDs are dense, and the table's parts never move, since survival.Units holds pointers into
// them. A table of 100,000 paths takes 5 MB, a map of pointers to them 11.
type pathTable []*[pathPart]path

const pathPart = 1 << 8

// of returns the path of a stack. Its line is nil before its first buffer.
func (t *pathTable) of(id tables.StackID) *path {
	part := int(id / pathPart)
	if part >= len(*t) {
		*t = append(*t, make([]*[pathPart]path, part+1-len(*t))...)
	}
	if (*t)[part] == nil {
		(*t)[part] = new([pathPart]path)
	}
	return &(*t)[part][id%pathPart]
}

// buffer is one live buffer, or physical memory that may be mapped.
type buffer struct {
	*site
	ledger     *Ledger
	ptr        alloc.Ptr
	since      time.Duration
	seq        uint64
	inLine     uint16 // see survival.Buffer.Birth
	inPath     uint16
	foreign    bool
	block      bool // see liveKey
	context    uint64
	references int32 // of physical memory: handles and mappings
	index      int32 // in ledger.live
}

func (b *buffer) size() alloc.Bytes { return b.tensor.Each }

const leastSweep = 1 << 12

// New returns an empty ledger, which keeps the latest events up to a number.
func New(stacks *symbols.StackTable, events int) *Ledger {
	return &Ledger{
		stacks:  stacks,
		tensors: make(map[tensorKey]*tables.Tensor), sites: make(map[siteKey]*site), sweep: leastSweep,
		retired: make(map[tables.StackID]mem.Tally), streams: []alloc.Stream{0},
		lines: make(map[mem.Frame]*survival.Unit), events: eventRing{max: events},
	}
}

// site returns the site of a buffer, a new one if need be.
func (l *Ledger) site(of tensorKey, stack tables.StackID, stream uint8) *site {
	tensor := l.tensors[of]
	if tensor == nil {
		tensor = &tables.Tensor{Kind: of.kind, Memory: of.memory, Each: of.each}
		l.tensors[of] = tensor
	}
	key := siteKey{tensor, stack, stream}
	s := l.sites[key]
	if s == nil {
		if len(l.sites) >= l.sweep {
			l.retire()
		}
		s = &site{siteKey: key, peakSeen: l.peakCount} // it had no buffers at the last peak
		l.sites[key] = s
		if p := l.paths.of(stack); p.line == nil {
			p.line = l.line(l.stacks.Site(stack))
		}
	}
	return s
}

// retire sums the call sites without live buffers up by call stack. A program whose sizes never
// repeat would otherwise keep one for every buffer.
func (l *Ledger) retire() {
	used := make(map[*tables.Tensor]bool)
	for key, s := range l.sites {
		if s.live != 0 || s.marked != 0 || s.atPeak(l.peakCount) != 0 {
			used[s.tensor] = true
			continue
		}
		l.retired[s.stack] = l.retired[s.stack].Add(s.tensor.Tally(s.total))
		delete(l.sites, key)
		s.changed = false
	}
	l.changed = slices.DeleteFunc(l.changed, func(s *site) bool { return !s.changed })
	maps.DeleteFunc(l.tensors, func(_ tensorKey, t *tables.Tensor) bool { return !used[t] })
	l.sweep = max(leastSweep, len(l.sites)+len(l.sites)/2)
}

// stream returns the index of a stream; 0, the default stream, if there are too many.
func (l *Ledger) stream(s alloc.Stream) uint8 {
	if i := slices.Index(l.streams, s); i >= 0 {
		return uint8(i)
	}
	if len(l.streams) == tables.MaxStreams {
		return 0
	}
	l.streams = append(slices.Clip(l.streams), s) // a copy: snapshots share the old slice
	return uint8(len(l.streams) - 1)
}

// add adds a buffer, or restores one that was removed.
func (l *Ledger) add(b *buffer, now time.Duration, action mem.Action) {
	l.adjustSite(b.site, 1)
	b.index = int32(len(l.live))
	l.live = append(l.live, b)
	l.count(b, 1)
	if action != mem.FreeFailed {
		b.since, b.seq = now, l.events.next
		b.total++
		p := l.paths.of(b.stack)
		b.inLine, b.inPath = p.line.Allocated, p.Allocated
		p.line.Allocated++
		p.Allocated++
		if !b.tensor.Memory.OnHost() {
			l.total = l.total.Add(b.tensor.Tally(1))
		}
	}
	if l.current.Bytes > l.peak.Bytes {
		l.peak = l.current
		l.peakCount++
	}
	l.recordEvent(b, now, action)
}

// remove removes a buffer.
func (l *Ledger) remove(b *buffer, now time.Duration, action mem.Action) {
	l.adjustSite(b.site, -1)
	last := len(l.live) - 1
	l.live[b.index], l.live[last].index = l.live[last], b.index
	l.live[last] = nil
	l.live = l.live[:last]
	l.count(b, -1)
	p := l.paths.of(b.stack)
	l.units.Freed(p.line, &p.Unit, now-b.since, now, l.events.next)
	l.recordEvent(b, now, action)
}

// copyLifetimes copies the lifetimes of lines that have freed buffers, and of stacks with enough live
// buffers to be reported.
func (l *Ledger) copyLifetimes(to *tables.Tables) {
	held := make(map[tables.StackID]int64)
	for _, s := range l.sites {
		held[s.stack] += s.live
	}
	var unused sync.Mutex // the caller has the lock
	to.Lines, to.Paths = make(map[mem.Frame]*survival.Unit, len(l.lines)), make(map[tables.StackID]*survival.Unit)
	for line, u := range l.lines {
		if u.Last != 0 {
			to.Lines[line] = u.Copy(&unused, true)
		}
	}
	for stack, n := range held {
		if u := l.paths.of(stack); n >= survival.Fewest && u.Last != 0 {
			to.Paths[stack] = u.Copy(&unused, true)
		}
	}
}

// line returns the unit of a line of code, a new one if need be.
func (l *Ledger) line(at mem.Frame) *survival.Unit {
	u := l.lines[at]
	if u == nil {
		u = new(survival.Unit)
		l.lines[at] = u
	}
	return u
}

// count updates the sums for an added (n is 1) or removed (n is -1) buffer.
func (l *Ledger) count(b *buffer, n int64) {
	change, memory := b.tensor.Tally(n), b.tensor.Memory
	l.byMemory[memory] = l.byMemory[memory].Add(change)
	if memory.OnHost() {
		return
	}
	l.current = l.current.Add(change)
	if b.foreign {
		l.registered += change.Bytes
	}
}

func (l *Ledger) adjustSite(s *site, n int64) {
	if s.peakSeen != l.peakCount {
		s.liveAtPeak, s.peakSeen = s.live, l.peakCount
	}
	s.live += n
	if !s.changed {
		s.changed = true
		l.changed = append(l.changed, s)
	}
}

// atPeak returns how many buffers were live at the ledger's latest peak, which has the number peaks.
func (s *site) atPeak(peaks uint64) int64 {
	if s.peakSeen != peaks {
		return s.live // unchanged since then
	}
	return s.liveAtPeak
}

func (l *Ledger) recordEvent(b *buffer, now time.Duration, action mem.Action) {
	l.events.add(tables.EventEntry{
		Since: now, Ptr: b.ptr, Allocated: b.size(), Tensor: b.tensor, Stack: b.stack, Action: action, Stream: b.stream,
	})
}

// outOfMemory records an allocation that failed for lack of memory.
func (l *Ledger) outOfMemory(size alloc.Bytes, stack tables.StackID, now time.Duration) {
	l.events.add(tables.EventEntry{Since: now, Allocated: size, Stack: stack, Action: mem.OutOfMemory})
}

// eventRing is a ring buffer of the latest events.
type eventRing struct {
	max  int
	kept []tables.EventEntry
	next uint64 // number of events so far
}

func (r *eventRing) add(e tables.EventEntry) {
	if len(r.kept) < r.max {
		r.kept = append(r.kept, e)
	} else if r.max > 0 {
		r.kept[r.next%uint64(r.max)] = e
	}
	r.next++
}

// ordered returns a copy, oldest first, and the number of dropped older ones.
func (r *eventRing) ordered() (first uint64, events []tables.EventEntry) {
	if len(r.kept) == 0 {
		return r.next, nil
	}
	first = r.next - uint64(len(r.kept))
	at := 0
	if len(r.kept) == r.max {
		at = int(r.next % uint64(r.max))
	}
	return first, slices.Concat(r.kept[at:], r.kept[:at])
}

// Levels returns the levels, without the driver's values.
func (l *Ledger) Levels() snapshot.Levels {
	levels := snapshot.Levels{
		Live: l.current, Allocated: l.current.Bytes, Registered: l.registered, Memory: l.byMemory.Map(), Reserved: l.current.Bytes - l.registered,
		DriverUsed: -1, DriverTotal: -1,
	}
	levels.HostReserved = levels.Host().Bytes
	return levels
}

// Peak returns the highest sum of live buffers.
func (l *Ledger) Peak() mem.Tally { return l.peak }

// Entries returns how many live buffers, call sites and events are kept, which take some hundred bytes each.
func (l *Ledger) Entries() int {
	return len(l.live) + len(l.sites) + len(l.retired) + len(l.events.kept)
}

// Copy copies the ledger to a snapshot: the sums and, if whole, the live buffers. epoch is the time that
// the times of its events count from. memory is the type of the buffers of retired sites.
func (l *Ledger) Copy(at *snapshot.Snapshot, epoch time.Time, memory alloc.Memory, whole bool) {
	at.Peak, at.Total, at.Events = l.peak, l.total, l.events.next
	lists := tables.Of(&at.Tables)
	*lists = tables.Tables{Stacks: l.stacks, Sections: []string{""}, Streams: l.streams, Epoch: epoch}
	lists.Sites = make([]tables.SiteEntry, 0, len(l.sites))
	for _, its := range l.sites {
		its.index = int32(len(lists.Sites))
		lists.Sites = append(lists.Sites, tables.SiteEntry{
			Place: tables.Place{Stack: its.stack}, Tensor: its.tensor, Live: its.live, Peak: its.atPeak(l.peakCount), Total: its.total, Stream: its.stream,
		})
	}
	for stack, total := range l.retired {
		lists.Retired = append(lists.Retired, tables.RetiredEntry{Place: tables.Place{Stack: stack}, Memory: memory, Total: total})
	}
	if !whole {
		return
	}
	lists.Allocations = make([]tables.AllocationEntry, 0, len(l.live))
	for _, b := range l.live {
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{
			Site: b.site.index, Foreign: b.foreign, Ptr: b.ptr, Allocated: b.size(), Since: b.since, Seq: b.seq, InLine: b.inLine, InPath: b.inPath,
		})
	}
	slices.SortFunc(lists.Allocations, func(a, b tables.AllocationEntry) int { return cmp.Compare(a.Seq, b.Seq) })
	l.copyLifetimes(lists)
}

// History copies the latest events.
func (l *Ledger) History(epoch time.Time) tables.HistoryTables {
	first, events := l.events.ordered()
	return tables.HistoryTables{Start: epoch, First: first, Events: events, Stacks: l.stacks, Sections: []string{""}, Streams: l.streams}
}

// Mark adds the event of a mark with a number, and returns what changed since the one before.
func (l *Ledger) Mark(number int, now time.Duration) snapshot.Delta {
	var delta snapshot.DeltaBuilder
	delta.Grow(len(l.changed))
	for _, its := range l.changed {
		its.changed = false
		change := its.tensor.Tally(its.live - its.marked)
		its.marked = its.live
		if change.Count != 0 {
			x := its.tensor
			delta.Add(snapshot.Group{Kind: x.Kind, DType: x.DType, Shape: x.Shape, Memory: x.Memory}, l.stacks.Site(its.stack), change)
		}
	}
	clear(l.changed) // they may be retired
	l.changed = l.changed[:0]
	l.events.add(tables.EventEntry{Since: now, Action: mem.Marked, Allocated: alloc.Bytes(number)})
	return delta.Delta()
}
