// Package eventlog makes the dump of a device from a log of allocations and frees: for files that have
// the events and no state at the end.
//
// A buffer is live from its allocation to its free. A free without an allocation is that of a buffer
// from before the log, if its size is known. An allocation at the address of a live buffer shows that
// the buffer was freed, though the log lacks it: the free is entered just before it.
package eventlog

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/lifetimes"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config says what a log is of.
type Config struct {
	Device  string // the device's name
	Ordinal int
	Origin  snapshot.Origin
	Start   time.Time               // that Event.Since counts from; zero if the events have no times
	Stacks  *tables.StackTable      // that Event.Stack is of
	Memory  alloc.Memory            // the type of all memory
	Use     func(bytes int64) error // asked before memory is taken
}

// Event is an allocation, a free or a failure.
type Event struct {
	Since  time.Duration // of one before the last event it is that event's
	Ptr    alloc.Ptr
	Size   alloc.Bytes
	Stack  tables.StackID
	Stream alloc.Stream
}

// Builder takes the events of a device. Only one goroutine at a time may use it.
type Builder struct {
	config  Config
	entries []tables.EventEntry
	siteOf  []int32           // the site of each entry about a buffer; -1 for others
	open    map[alloc.Ptr]int // the entry of the allocation that is live at an address
	before  []int32           // sites of the buffers from before the log
	failure int               // the entry of a failure that no allocation followed; -1 if there is none

	sites   []tables.SiteEntry
	siteIDs map[siteKey]int32
	tensors map[alloc.Bytes]*tables.Tensor
	streams []alloc.Stream
	stream  map[alloc.Stream]uint8
}

type siteKey struct {
	stack  tables.StackID
	stream uint8
	size   alloc.Bytes
}

// The bytes that things take, as Config.Use counts them.
const (
	entryBytes = 96 // with what refers to it
	siteBytes  = 256
	liveBytes  = 96
)

// New returns a builder without events.
func New(c Config) *Builder {
	return &Builder{
		config: c, open: make(map[alloc.Ptr]int), failure: -1, siteIDs: make(map[siteKey]int32), tensors: make(map[alloc.Bytes]*tables.Tensor),
		streams: []alloc.Stream{0}, stream: map[alloc.Stream]uint8{0: 0},
	}
}

// Len returns the number of events.
func (b *Builder) Len() int { return len(b.entries) }

// Alloc adds an allocation.
func (b *Builder) Alloc(e Event) error {
	if _, live := b.open[e.Ptr]; live {
		lost := e
		lost.Size = 0
		if err := b.Free(lost); err != nil {
			return err
		}
	}
	b.failure = -1 // the program went on
	site, err := b.site(e.Stack, e.Stream, e.Size)
	if err != nil {
		return err
	}
	if err := b.config.Use(liveBytes); err != nil {
		return err
	}
	b.open[e.Ptr] = len(b.entries)
	b.sites[site].Total++
	return b.add(e, mem.Allocated, site)
}

// Free adds a free. The size of a buffer that is live is known; another one's is that of the event, and a free of nothing
// is left out.
func (b *Builder) Free(e Event) error {
	if i, live := b.open[e.Ptr]; live {
		delete(b.open, e.Ptr)
		e.Stack, e.Stream, e.Size = b.entries[i].Stack, b.streams[b.entries[i].Stream], b.entries[i].Allocated
		return b.add(e, mem.Freed, b.siteOf[i])
	}
	if e.Size <= 0 {
		return nil
	}
	site, err := b.site(0, e.Stream, e.Size)
	if err != nil {
		return err
	}
	e.Stack = 0
	b.before = append(b.before, site)
	b.sites[site].Total++
	return b.add(e, mem.Freed, site)
}

// Fail adds an allocation that failed.
func (b *Builder) Fail(e Event) error {
	e.Ptr = 0
	b.failure = len(b.entries)
	return b.add(e, mem.OutOfMemory, -1)
}

func (b *Builder) add(e Event, action mem.Action, site int32) error {
	if err := b.config.Use(entryBytes); err != nil {
		return err
	}
	if b.config.Start.IsZero() {
		e.Since = time.Duration(len(b.entries)) * time.Microsecond
	}
	if n := len(b.entries); n > 0 {
		e.Since = max(e.Since, b.entries[n-1].Since)
	}
	entry := tables.EventEntry{Since: e.Since, Ptr: e.Ptr, Allocated: e.Size, Stack: e.Stack, Action: action, Stream: b.streamOf(e.Stream)}
	if site >= 0 {
		entry.Tensor = b.sites[site].Tensor
	}
	b.entries, b.siteOf = append(b.entries, entry), append(b.siteOf, site)
	return nil
}

// streamOf numbers a stream. Those beyond tables.MaxStreams count as the last.
func (b *Builder) streamOf(s alloc.Stream) uint8 {
	n, ok := b.stream[s]
	switch {
	case ok:
	case len(b.streams) < tables.MaxStreams-1:
		n = uint8(len(b.streams))
		b.streams = append(b.streams, s)
		b.stream[s] = n
	default:
		if len(b.streams) < tables.MaxStreams {
			b.streams = append(b.streams, tables.OtherStreams)
		}
		n = tables.MaxStreams - 1
	}
	return n
}

func (b *Builder) site(stack tables.StackID, stream alloc.Stream, size alloc.Bytes) (int32, error) {
	key := siteKey{stack, b.streamOf(stream), size}
	id, ok := b.siteIDs[key]
	if ok {
		return id, nil
	}
	tensor := b.tensors[size]
	if tensor == nil {
		tensor = &tables.Tensor{Memory: b.config.Memory, Each: size}
		b.tensors[size] = tensor
	}
	id = int32(len(b.sites))
	b.siteIDs[key] = id
	b.sites = append(b.sites, tables.SiteEntry{Place: tables.Place{Stack: stack}, Stream: key.stream, Tensor: tensor})
	return id, b.config.Use(siteBytes)
}

// Dump returns the dump of the device after the last event. The builder is used up.
func (b *Builder) Dump() (*snapshot.Dump, error) {
	s := &snapshot.Snapshot{Device: b.config.Device, Ordinal: b.config.Ordinal, Origin: b.config.Origin}
	s.DriverUsed, s.DriverTotal = -1, -1
	first := uint64(len(b.before))
	s.Events = first + uint64(len(b.entries))
	if n := len(b.entries); n > 0 && !b.config.Start.IsZero() {
		s.Time = b.config.Start.Add(b.entries[n-1].Since)
	}
	live := make([]tables.AllocationEntry, 0, len(b.open))
	for _, i := range b.open {
		e := &b.entries[i]
		b.sites[b.siteOf[i]].Live++
		live = append(live, tables.AllocationEntry{Site: b.siteOf[i], Ptr: e.Ptr, Allocated: e.Allocated, Since: e.Since, Seq: first + uint64(i)})
		s.Live = s.Live.Add(mem.Tally{Count: 1, Bytes: e.Allocated})
	}
	slices.SortFunc(live, func(x, y tables.AllocationEntry) int { return cmp.Compare(x.Seq, y.Seq) })
	s.Allocated, s.Reserved = s.Live.Bytes, s.Live.Bytes
	if s.Live.Count > 0 {
		s.Memory = map[alloc.Memory]mem.Tally{b.config.Memory: s.Live}
	}
	peak, at := b.peak()
	for i, n := range b.countsAt(at) {
		b.sites[i].Peak = n
	}
	s.Peak = peak
	for i := range b.sites {
		s.Total = s.Total.Add(b.sites[i].Tensor.Tally(b.sites[i].Total))
	}
	sections := []string{""}
	*tables.Of(&s.Tables) = tables.Tables{Stacks: b.config.Stacks, Sections: sections, Streams: b.streams, Sites: b.sites, Allocations: live, Epoch: b.config.Start}
	d := &snapshot.Dump{
		Snapshot: s,
		Devices:  snapshot.Devices{{Device: s.Device, Ordinal: s.Ordinal, Levels: snapshot.Levels{DriverUsed: -1, DriverTotal: -1, Reserved: s.Reserved}}},
		History: tables.WrapHistory(tables.HistoryTables{
			Start: b.config.Start, First: first, Events: b.entries, Stacks: b.config.Stacks, Sections: sections, Streams: b.streams,
		}),
	}
	if err := lifetimes.Add(tables.Of(&s.Tables), tables.OfHistory(&d.History), b.config.Use); err != nil {
		return nil, err
	}
	if b.failure >= 0 {
		d.Reason, d.OOM = "out of memory", b.outOfMemory()
	}
	return d, nil
}

// peak returns the most that was live, and after how many entries.
func (b *Builder) peak() (most mem.Tally, at int) {
	var level mem.Tally
	for _, site := range b.before {
		level = level.Add(b.sites[site].Tensor.Tally(1))
	}
	most = level
	for i, e := range b.entries {
		if e.Tensor == nil {
			continue
		}
		if level = level.Add(e.Tensor.Tally(change(e))); level.Bytes > most.Bytes {
			most, at = level, i+1
		}
	}
	return most, at
}

// countsAt returns how many buffers of each site were live after that many entries.
func (b *Builder) countsAt(entries int) []int64 {
	counts := make([]int64, len(b.sites))
	for _, site := range b.before {
		counts[site]++
	}
	for i, e := range b.entries[:entries] {
		if site := b.siteOf[i]; site >= 0 {
			counts[site] += change(e)
		}
	}
	return counts
}

// change returns what an event adds to the number of live buffers.
func change(e tables.EventEntry) int64 {
	switch walk.Of(e.Action) {
	case walk.Begin:
		return 1
	case walk.End:
		return -1
	}
	return 0
}

// outOfMemory describes the failure that the log ends with. What was freed since counts as live.
func (b *Builder) outOfMemory() *snapshot.OOM {
	const most = 10 // call sites
	o := &snapshot.OOM{
		Requested: b.entries[b.failure].Allocated, Free: -1, Total: -1, Reserved: -1, Inactive: -1, LargestInactive: -1, Untracked: -1, Elsewhere: -1, Others: -1,
	}
	sums := make(map[mem.Frame]mem.Tally)
	for i, n := range b.countsAt(b.failure) {
		if n > 0 {
			at := b.config.Stacks.Site(b.sites[i].Stack)
			sums[at] = sums[at].Add(b.sites[i].Tensor.Tally(n))
		}
	}
	for at, live := range sums {
		o.CallSites = append(o.CallSites, mem.CallSiteTally{Frame: at, Tally: live})
	}
	slices.SortFunc(o.CallSites, func(x, y mem.CallSiteTally) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), tables.CompareFrames(x.Frame, y.Frame))
	})
	o.CallSites = o.CallSites[:min(most, len(o.CallSites))]
	return o
}
