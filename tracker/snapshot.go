package tracker

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// Snapshot is a copy of the ledger at an instant. It does not change; any
// goroutine may read it. It can be written as JSON and read again, by another
// program too: see WriteJSON and ReadSnapshot.
type Snapshot struct {
	Time    time.Time
	Origin  Origin
	Device  string // the device's name
	Ordinal int
	Levels
	Peak  Tally // the level of most bytes, and the buffers live then
	Total Tally // all buffers ever

	// Events is how many events the history had seen: buffers allocated since
	// have a Seq of at least that.
	Events uint64

	// Cache and Segments are the state of the tracker's cache at the same instant;
	// nil if it has none. A light snapshot has no Segments.
	Cache    *alloc.Stats
	Segments []alloc.Segment

	epoch       time.Time // allocationEntry.since counts from here
	sites       []siteEntry
	retired     []retiredEntry
	allocations []allocationEntry // by seq; nil in a light snapshot
	stacks      stackSource
	sections    []string
}

// stackSource names the stacks that a snapshot refers to: those of a tracker,
// or those read from a file.
type stackSource interface {
	resolve(callstack.ID) Stack
	site(callstack.ID) Frame
}

// siteEntry is a cell, copied.
type siteEntry struct {
	place
	group             *group
	live, peak, total int64
}

// retiredEntry is what was ever allocated at a place, in cells that the ledger
// has dropped.
type retiredEntry struct {
	place
	total Tally
}

// allocationEntry is a record, copied.
type allocationEntry struct {
	site      int32 // index in sites
	foreign   bool
	lost      bool
	ptr       alloc.Ptr
	allocated alloc.Bytes
	since     time.Duration
	seq       uint64
	label     string
}

// Allocation is one live buffer of a Snapshot.
type Allocation struct {
	Seq        uint64 // its place in the history: larger is later
	Time       time.Time
	Ptr        alloc.Ptr
	Requested  alloc.Bytes
	Allocated  alloc.Bytes // after rounding
	Kind       Kind
	DType      alloc.DType
	Shape      alloc.Shape // shared: do not write
	Label      string
	Section    string
	Registered bool  // other code owns the memory
	Lost       bool  // nobody can free it any more; see LostPolicy
	Stack      Stack // shared: do not write
	Site       Frame // the line of the user's code in Stack
}

// SiteStats is what one call stack allocated of one kind, shape and dtype in one
// section. Of a program whose shapes never repeat, the shapes long gone are summed
// up by stack and section: such an entry has no dtype, no shape, and only a Total.
type SiteStats struct {
	Kind    Kind
	DType   alloc.DType
	Shape   alloc.Shape // shared: do not write
	Section string      // its path; "" is outside of all
	Stack   Stack       // shared: do not write
	Site    Frame       // the line of the user's code in Stack
	Live    Tally       // now
	Peak    Tally       // at the moment of most bytes of all
	Total   Tally       // ever
}

// Group is the live buffers of one kind, shape and dtype.
type Group struct {
	Kind  Kind        `json:"kind"`
	DType alloc.DType `json:"dtype"`
	Shape alloc.Shape `json:"shape"` // shared: do not write
	Tally
	Sites []SiteTally `json:"sites"` // the lines of code that allocated them, larger first
}

// Snapshot copies the ledger and the cache's segments, all of one instant. It
// copies a thousand records at a time, between which allocations go on: an
// Alloc or Free waits some tens of microseconds at most, however many buffers are live.
func (t *MemTracker) Snapshot() *Snapshot { return t.snapshot(true) }

// LightSnapshot is a Snapshot without the single allocations and the cache's
// segments: groups, call sites and levels only. Its cost follows the call sites,
// not the buffers.
func (t *MemTracker) LightSnapshot() *Snapshot { return t.snapshot(false) }

func (t *MemTracker) snapshot(whole bool) *Snapshot {
	s := &Snapshot{
		Origin: t.origin, Device: t.device.Name(), Ordinal: t.device.Ordinal(), Levels: t.levels(),
		epoch: t.start, stacks: t.stacks,
	}
	now := t.now()
	t.mu.Lock()
	s.Time = t.start.Add(t.history.moment(now))
	t.ledgerLevels(&s.Levels)
	s.Peak, s.Total, s.Events = t.ledger.peak, t.ledger.total, t.history.next
	s.sections = t.sections.paths.names
	if t.cache != nil {
		stats := t.cache.Locked().Stats()
		s.Cache = &stats
	}
	cut := t.cut(whole)
	t.mu.Unlock()

	index := s.copySites(t.mu, cut)
	if whole {
		s.copyAllocations(t.mu, cut, index)
	}
	if cut.segments != nil {
		s.Segments = cut.segments.Segments()
	}
	if t.closed.Load() {
		t.usedAfterClose("Snapshot")
	}
	return s
}

// ledgerCut is the ledger and the cache at one instant, not copied yet.
type ledgerCut struct {
	cells    *slab.View[cell]
	retired  *slab.View[retiredEntry]
	epoch    uint64
	counts   [3]int             // of cells, retired cells, records
	records  *slab.View[record] // nil of a light snapshot
	labels   *slab.View[string]
	segments *alloc.Cut // nil too without a cache
}

// cut returns the ledger of this instant. The caller holds the lock.
func (t *MemTracker) cut(whole bool) *ledgerCut {
	l := &t.ledger
	cut := &ledgerCut{
		cells: l.cells.View(), retired: l.cells.retired.View(), epoch: l.epoch,
		counts: [3]int{l.cells.Len(), l.cells.retired.Len(), l.records.Len()},
	}
	if !whole {
		return cut
	}
	cut.records, cut.labels = l.records.View(), l.labels.View()
	if t.cache != nil {
		cut.segments = t.cache.Locked().Cut()
	}
	return cut
}

// copySites copies the cells, and returns where each is in sites, by ID.
func (s *Snapshot) copySites(lock sync.Locker, cut *ledgerCut) (index []int32) {
	index = make([]int32, cut.cells.Bound())
	s.sites = make([]siteEntry, 0, cut.counts[0])
	cut.cells.Read(lock, func(first slab.ID, cells *[slab.ChunkLen]cell) {
		for i := range cells {
			if c := &cells[i]; c.group != nil {
				index[int(first)+i] = int32(len(s.sites))
				s.sites = append(s.sites, siteEntry{c.place, c.group, c.live, c.atPeak(cut.epoch), c.total})
			}
		}
	})
	s.retired = make([]retiredEntry, 0, cut.counts[1])
	cut.retired.Read(lock, func(_ slab.ID, entries *[slab.ChunkLen]retiredEntry) {
		for _, e := range entries {
			if !e.total.IsZero() {
				s.retired = append(s.retired, e)
			}
		}
	})
	return index
}

// copyAllocations copies the records, in the order of their allocation.
func (s *Snapshot) copyAllocations(lock sync.Locker, cut *ledgerCut, index []int32) {
	labels := make(map[slab.ID]string)
	cut.labels.Read(lock, func(first slab.ID, names *[slab.ChunkLen]string) {
		for i, name := range names {
			if name != "" {
				labels[first+slab.ID(i)] = name
			}
		}
	})
	s.allocations = make([]allocationEntry, 0, cut.counts[2])
	cut.records.Read(lock, func(_ slab.ID, records *[slab.ChunkLen]record) {
		for i := range records {
			if r := &records[i]; r.state == live && int(r.cell) < len(index) {
				s.allocations = append(s.allocations, allocationEntry{
					site: index[r.cell], foreign: r.foreign, lost: r.lost, ptr: r.ptr,
					allocated: r.allocated, since: r.since, seq: r.seq, label: labels[r.label],
				})
			}
		}
	})
	slices.SortFunc(s.allocations, func(a, b allocationEntry) int { return cmp.Compare(a.seq, b.seq) })
}

// Allocations iterates over the live buffers, oldest first. A light snapshot has none.
func (s *Snapshot) Allocations() iter.Seq[Allocation] {
	return func(yield func(Allocation) bool) {
		for _, e := range s.allocations {
			if !yield(s.allocation(e)) {
				return
			}
		}
	}
}

func (s *Snapshot) allocation(e allocationEntry) Allocation {
	site := s.sites[e.site]
	return Allocation{
		Seq: e.seq, Time: s.epoch.Add(e.since), Ptr: e.ptr,
		Requested: site.group.each, Allocated: e.allocated,
		Kind: site.group.kind, DType: site.group.dtype, Shape: site.group.shape,
		Label: e.label, Section: s.sections[site.section], Registered: e.foreign, Lost: e.lost,
		Stack: s.stacks.resolve(site.stack), Site: s.stacks.site(site.stack),
	}
}

// Sites iterates over the call stacks and what they allocated: more live bytes
// first, then more bytes ever, then in the order of Groups, of the lines of code and
// of the sections.
func (s *Snapshot) Sites() iter.Seq[SiteStats] {
	sites := make([]SiteStats, 0, len(s.sites)+len(s.retired))
	for _, e := range s.sites {
		g := e.group
		sites = append(sites, SiteStats{
			Kind: g.kind, DType: g.dtype, Shape: g.shape, Section: s.sections[e.section],
			Stack: s.stacks.resolve(e.stack), Site: s.stacks.site(e.stack),
			Live: g.tally(e.live), Peak: g.tally(e.peak), Total: g.tally(e.total),
		})
	}
	for _, e := range s.retired {
		sites = append(sites, SiteStats{
			Section: s.sections[e.section], Stack: s.stacks.resolve(e.stack), Site: s.stacks.site(e.stack), Total: e.total,
		})
	}
	slices.SortFunc(sites, func(x, y SiteStats) int {
		return cmp.Or(
			cmp.Compare(y.Live.Bytes, x.Live.Bytes),
			cmp.Compare(y.Total.Bytes, x.Total.Bytes),
			compareGroup(x.Kind, y.Kind, x.DType, y.DType, x.Shape, y.Shape),
			slices.CompareFunc(x.Stack, y.Stack, compareFrame),
			cmp.Compare(x.Section, y.Section))
	})
	return slices.Values(sites)
}

// String prints the group as a report does.
func (g Group) String() string { return Change(g).String() }

// Groups iterates over the live table in the order of a report.
func (s *Snapshot) Groups() iter.Seq[Group] {
	return func(yield func(Group) bool) {
		for c := range s.Sub(nil).Changes() {
			if !yield(Group(c)) {
				return
			}
		}
	}
}

// Sub returns how the live table of s differs from that of base, which may be
// of another tracker or another program. A nil base is an empty table.
func (s *Snapshot) Sub(base *Snapshot) Delta {
	b := newDeltaBuilder(0)
	s.addTo(&b, 1)
	if base != nil {
		base.addTo(&b, -1)
	}
	return b.delta()
}

func (s *Snapshot) addTo(b *deltaBuilder, sign int64) {
	for _, e := range s.sites {
		if e.live != 0 {
			b.add(e.group.kind, e.group.dtype, e.group.shape, s.stacks.site(e.stack), e.group.tally(sign*e.live))
		}
	}
}

// String prints the live table as a report does, and the totals.
func (s *Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%d] | %v live | %v reserved | peak %v\n", printable([]byte(s.Device), 0), s.Ordinal, s.Live, s.Reserved, s.Peak)
	b.WriteString(s.Sub(nil).String())
	return b.String()
}
