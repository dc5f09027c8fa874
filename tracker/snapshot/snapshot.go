package snapshot

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Snapshot is the state of a device's memory at an instant. It does not change; any goroutine
// may read it. WriteJSON writes it, and Read reads it, in another program too.
type Snapshot struct {
	Head
	tables tables.Tables
}

// Head is the summary of a Snapshot: when and where it was taken, the levels, and the state of
// the cache.
type Head struct {
	Time    time.Time
	Origin  Origin
	Device  string // the device's name
	Ordinal int
	Levels
	Peak  mem.Tally // the level of most bytes, and the buffers live then; as Live, without host memory
	Total mem.Tally // all buffers ever, without those in host memory

	// Events is how many events the history had seen: buffers allocated since
	// have a Seq of at least that.
	Events uint64

	// Cache and Segments are the state of the allocator at the same instant; nil if
	// there is none, or if it is not known. A light snapshot has no Segments.
	Cache    *alloc.Stats
	Segments []alloc.Segment
	// Settings are those of the allocator, as its own words have them; nil if they
	// are not known.
	Settings map[string]string
}

// New returns the snapshot of a source. It keeps the tables and the source's stacks; do not
// write to the tables afterwards.
func New(head Head, tables tables.Tables) *Snapshot { return &Snapshot{head, tables} }

// Allocation is one live buffer of a Snapshot.
type Allocation struct {
	Seq        uint64 // its place in the history: larger is later
	Time       time.Time
	Ptr        alloc.Ptr
	Requested  alloc.Bytes
	Allocated  alloc.Bytes // after rounding
	Kind       mem.Kind
	DType      alloc.DType
	Shape      alloc.Shape // shared: do not write
	Memory     alloc.Memory
	Label      string
	Section    string
	Stream     alloc.Stream
	Registered bool      // other code owns the memory
	Lost       bool      // the program can no longer free it; see tracker.LostPolicy
	Stack      mem.Stack // shared: do not write
	Site       mem.Frame // the line of the user's code in Stack
}

// SiteStats is what one call stack allocated of one kind, shape and dtype in one section. For
// a program whose shapes never repeat, shapes that are long gone are added up by stack and
// section: such an entry has no dtype, no shape, and only a Total.
type SiteStats struct {
	Kind    mem.Kind
	DType   alloc.DType
	Shape   alloc.Shape // shared: do not write
	Memory  alloc.Memory
	Section string // its path; "" is outside of all
	Stream  alloc.Stream
	Stack   mem.Stack // shared: do not write
	Site    mem.Frame // the line of the user's code in Stack
	Live    mem.Tally // now
	Peak    mem.Tally // at the moment of most bytes of all
	Total   mem.Tally // ever
}

// Group is the live buffers of one kind, shape, dtype and kind of memory.
type Group struct {
	Kind  mem.Kind    `json:"kind"`
	DType alloc.DType `json:"dtype,omitempty"`
	Shape alloc.Shape `json:"shape"` // shared: do not write
	// Memory is what kind of memory the buffers are in.
	Memory alloc.Memory `json:"memory,omitzero"`
	mem.Tally
	Sites []mem.SiteTally `json:"sites"` // the lines of code that allocated them, larger first
}

// Allocations iterates over the live buffers, oldest first. A light snapshot has none.
func (s *Snapshot) Allocations() iter.Seq[Allocation] {
	return func(yield func(Allocation) bool) {
		for _, e := range s.tables.Allocations {
			if !yield(s.allocation(e)) {
				return
			}
		}
	}
}

func (s *Snapshot) allocation(e tables.AllocationEntry) Allocation {
	site := s.tables.Sites[e.Site]
	return Allocation{
		Seq: e.Seq, Time: s.tables.Epoch.Add(e.Since), Ptr: e.Ptr,
		Requested: site.Tensor.Each, Allocated: e.Allocated,
		Kind: site.Tensor.Kind, DType: site.Tensor.DType, Shape: site.Tensor.Shape, Memory: site.Tensor.Memory,
		Label: e.Label, Section: s.tables.Sections[site.Section], Registered: e.Foreign, Lost: e.Lost, Stream: tables.StreamOf(s.tables.Streams, site.Stream),
		Stack: s.tables.Stacks.Stack(site.Stack), Site: s.tables.Stacks.Site(site.Stack),
	}
}

// Sites iterates over the call stacks and what they allocated: by live bytes, then by total
// bytes, then in the order of Groups, lines of code and sections.
func (s *Snapshot) Sites() iter.Seq[SiteStats] {
	sites := make([]SiteStats, 0, len(s.tables.Sites)+len(s.tables.Retired))
	for _, e := range s.tables.Sites {
		g := e.Tensor
		sites = append(sites, SiteStats{
			Kind: g.Kind, DType: g.DType, Shape: g.Shape, Memory: g.Memory, Section: s.tables.Sections[e.Section],
			Stream: tables.StreamOf(s.tables.Streams, e.Stream), Stack: s.tables.Stacks.Stack(e.Stack), Site: s.tables.Stacks.Site(e.Stack),
			Live: g.Tally(e.Live), Peak: g.Tally(e.Peak), Total: g.Tally(e.Total),
		})
	}
	for _, e := range s.tables.Retired {
		sites = append(sites, SiteStats{
			Memory: e.Memory, Section: s.tables.Sections[e.Section], Stack: s.tables.Stacks.Stack(e.Stack), Site: s.tables.Stacks.Site(e.Stack), Total: e.Total,
		})
	}
	slices.SortFunc(sites, func(x, y SiteStats) int {
		if c := cmp.Or(cmp.Compare(y.Live.Bytes, x.Live.Bytes), cmp.Compare(y.Total.Bytes, x.Total.Bytes)); c != 0 {
			return c // the rest takes longer
		}
		return cmp.Or(
			compareGroup(x.Kind, y.Kind, x.DType, y.DType, x.Shape, y.Shape),
			cmp.Compare(x.Memory, y.Memory),
			stackCompare(x.Stack, y.Stack),
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
	b := NewDeltaBuilder(0)
	s.addTo(&b, 1)
	if base != nil {
		base.addTo(&b, -1)
	}
	return b.Delta()
}

func (s *Snapshot) addTo(b *DeltaBuilder, sign int64) {
	for _, e := range s.tables.Sites {
		if e.Live != 0 {
			b.Add(e.Tensor, s.tables.Stacks.Site(e.Stack), e.Tensor.Tally(sign*e.Live))
		}
	}
}

// String prints the live table as a report does, and the totals.
func (s *Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%d] | %v live | %v reserved | peak %v\n", text.Printable([]byte(s.Device), 0), s.Ordinal, s.Live, s.Reserved, s.Peak)
	b.Write(s.Levels.AppendMemory(nil, "  "))
	b.WriteString(s.Sub(nil).String())
	return b.String()
}
