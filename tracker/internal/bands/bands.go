// Package bands draws a history as bands: each allocation is a band over time, as high as it has bytes, on top of those that
// were live when it began. What is above a band moves down when it ends. The memory_viz page of PyTorch calls this picture
// the Active Memory Timeline.
//
// The bottom of a band at a moment is the sum of the live allocations that began before it, so the order from the bottom is
// the order of allocation, at any moment and under any filter. An [Index] therefore stores no positions. It has for each
// allocation when it began and ended, and its bytes, sorted by its beginning: 30 bytes, and 8 bytes for the level after each
// event. A [Layer] is all allocations of an index or those that pass a [Filter]. [Layer.Tile] computes the positions of the
// part that a view shows, and its cost follows what the view shows.
//
// A moment is a number of events: moment m is the state after the first m events of the history. The package counts the
// device's memory, or the host's, never both.
//
// An index does not change after [New]; any goroutine may read it.
package bands

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Index is the allocations of one device's history, or those in the host's memory, by number: the oldest is 0. Those from
// before the history come first.
type Index struct {
	Dump  *snapshot.Dump
	Names *Names
	All   *Layer // of all allocations

	host    bool
	lists   *tables.Tables
	past    *tables.HistoryTables
	events  []tables.EventEntry
	clock   clock
	ptrs    []alloc.Ptr
	stacks  []uint32 // indexes of stackOf
	kinds   []uint16
	initial []int32 // of each allocation from before the history, its index among those live at the end, or -1
	stackOf []stackRef
	lineOf  map[uint32][]uint32 // the stacks of a line
	pending []pendingSpan
	curve   curve

	segmentEvents []uint32 // the events that change segments
}

// Forever is when an allocation ended that is live at the end.
const Forever = math.MaxUint32

// MaxEvents is how many events an index can number.
const MaxEvents = math.MaxInt32

// stackRef is a call stack of the snapshot or of its history.
type stackRef struct {
	of   tables.Stacks
	id   tables.StackID
	line uint32 // see Names
}

// pendingSpan is memory that was freed, and was in use by other streams until a moment.
type pendingSpan struct {
	id       uint32
	from, to uint32
}

// New returns the index of a dump's memory on its device, or in the host's memory. It goes through the events once. Of names,
// it numbers the lines of code and the kinds. The error is the context's.
func New(ctx context.Context, d *snapshot.Dump, names *Names, host bool) (*Index, error) {
	events, _ := walk.Events(d)
	events = events[:min(len(events), MaxEvents)]
	x := &Index{
		Dump: d, Names: names, host: host, events: events,
		lists: tables.Of(&d.Snapshot.Tables), past: tables.OfHistory(&d.History),
	}
	x.clock = newClock(d, events)
	b := builder{Index: x, open: make(map[alloc.Ptr]uint32), dense: [2]denseStacks{{}, {}}}
	if err := b.read(ctx); err != nil {
		return nil, err
	}
	x.curve = newCurve(x)
	x.lineOf = make(map[uint32][]uint32)
	for i, s := range x.stackOf {
		x.lineOf[s.line] = append(x.lineOf[s.line], uint32(i))
	}
	return x, nil
}

// HasHost reports whether a dump has memory of the host.
func HasHost(d *snapshot.Dump) bool {
	t := tables.Of(&d.Snapshot.Tables)
	if slices.ContainsFunc(t.Sites, func(s tables.SiteEntry) bool { return s.Tensor.Memory.OnHost() }) {
		return true
	}
	events, _ := walk.Events(d)
	return slices.ContainsFunc(events, func(e tables.EventEntry) bool { return e.Tensor != nil && e.Tensor.Memory.OnHost() })
}

// Len returns the number of allocations.
func (x *Index) Len() int { return len(x.ptrs) }

// Moments returns the number of moments: one more than there are events.
func (x *Index) Moments() uint32 { return uint32(len(x.events)) + 1 }

// First returns how many events were before the history: moment 0 is the state after them.
func (x *Index) First() uint64 {
	if len(x.events) == 0 {
		return x.Dump.Snapshot.Events
	}
	return x.past.First
}

// Stacks returns the number of call stacks.
func (x *Index) Stacks() int { return len(x.stackOf) }

// Stack returns a call stack, innermost first, and its line.
func (x *Index) Stack(stack uint32) (mem.Stack, uint32) {
	s := x.stackOf[stack]
	return s.of.Stack(s.id), s.line
}

// Line returns the line of code of an allocation.
func (x *Index) Line(id uint32) uint32 { return x.stackOf[x.stacks[id]].line }

// Kind returns the kind of an allocation, by its number in Names.
func (x *Index) Kind(id uint32) uint16 { return x.kinds[id] }

// StackOf returns the call stack of an allocation.
func (x *Index) StackOf(id uint32) uint32 { return x.stacks[id] }

// Bytes returns the requested bytes of an allocation.
func (x *Index) Bytes(id uint32) int64 { return x.All.bytes[id] }

// Life returns when an allocation began and ended. It is live at the moments from born up to, but not at, died.
func (x *Index) Life(id uint32) (born, died uint32) { return x.All.born[id], x.All.died[id] }

// Ptr returns the address of an allocation.
func (x *Index) Ptr(id uint32) alloc.Ptr { return x.ptrs[id] }

// builder goes through the events.
type builder struct {
	*Index
	open   map[alloc.Ptr]uint32 // the number of what is live at an address
	latest map[alloc.Ptr]uint32 // and of what was live there last, where events complete frees; otherwise nil
	dense  [2]denseStacks

	old     []oldAllocation // began before the history
	isOld   map[alloc.Ptr]uint32
	atEnd   map[alloc.Ptr]int32
	kindsOf map[*tables.Tensor]uint16
}

// oldAllocation is an allocation from before the history. An entry at the end describes it, or else the event that ended it.
type oldAllocation struct {
	ptr    alloc.Ptr
	bytes  int64
	tensor *tables.Tensor
	stack  uint32
	died   uint32
	atEnd  int32
	seq    uint64
}

// denseStacks numbers the stacks of a source from 0.
type denseStacks struct {
	small []uint32 // by StackID; the number plus one
	large map[tables.StackID]uint32
}

const maxSmallStack = 1 << 24

func (s *denseStacks) of(id tables.StackID) *uint32 {
	if id < maxSmallStack {
		if int(id) >= len(s.small) {
			s.small = append(s.small, make([]uint32, int(id)+1-len(s.small))...)
		}
		return &s.small[id]
	}
	if s.large == nil {
		s.large = make(map[tables.StackID]uint32)
	}
	n := s.large[id]
	return &n
}

// stack numbers a stack of the snapshot, or of the history.
func (b *builder) stack(ofHistory bool, id tables.StackID) uint32 {
	source, from := b.lists.Stacks, 0
	if ofHistory && b.past.Stacks != nil && b.past.Stacks != b.lists.Stacks {
		source, from = b.past.Stacks, 1
	}
	n := b.dense[from].of(id)
	if *n == 0 {
		ref := stackRef{of: source, id: id}
		if source == nil {
			ref.of = new(tables.StackTable)
			ref.id = 0
		}
		ref.line = b.Names.line(ref.of.Site(ref.id))
		b.stackOf = append(b.stackOf, ref)
		*n = uint32(len(b.stackOf))
		if id >= maxSmallStack {
			b.dense[from].large[id] = *n
		}
	}
	return *n - 1
}

func (b *builder) kind(t *tables.Tensor) uint16 {
	if t == nil {
		return b.Names.kind("")
	}
	k, ok := b.kindsOf[t]
	if !ok {
		k = b.Names.kind(t.Kind)
		b.kindsOf[t] = k
	}
	return k
}

func (b *builder) counts(t *tables.Tensor) bool {
	return b.host == (t != nil && t.Memory.OnHost())
}

// requested returns the bytes that the event's buffer asked for.
func requested(e *tables.EventEntry) int64 {
	if e.Tensor == nil {
		return 0
	}
	return int64(e.Tensor.Each)
}

const checkEvery = 1 << 16 // events between looks at the context

func (b *builder) read(ctx context.Context) error {
	b.kindsOf = make(map[*tables.Tensor]uint16)
	b.isOld, b.atEnd = make(map[alloc.Ptr]uint32), make(map[alloc.Ptr]int32)
	first := b.First()
	begins := 0
	for i := range b.events {
		if walk.Of(b.events[i].Action) == walk.Begin && b.counts(b.events[i].Tensor) {
			begins++
		}
		if walk.Of(b.events[i].Action) == walk.Complete && b.latest == nil {
			b.latest = make(map[alloc.Ptr]uint32)
		}
	}
	b.list(first)
	all := &Layer{born: make([]uint32, 0, begins), died: make([]uint32, 0, begins), bytes: make([]int64, 0, begins)}
	b.All = all
	b.ptrs, b.stacks, b.kinds = make([]alloc.Ptr, 0, begins), make([]uint32, 0, begins), make([]uint16, 0, begins)
	for i := range b.events {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b.event(uint32(i)+1, &b.events[i])
	}
	b.prepend()
	all.finish(b.Moments())
	return ctx.Err()
}

// list enters what was live before the history and still is at the end.
func (b *builder) list(first uint64) {
	for i := range b.lists.Allocations {
		a := &b.lists.Allocations[i]
		site := &b.lists.Sites[a.Site]
		if !b.counts(site.Tensor) || a.Seq >= first && len(b.events) > 0 {
			continue
		}
		if _, twice := b.isOld[a.Ptr]; twice {
			continue
		}
		b.addOld(oldAllocation{ptr: a.Ptr, bytes: int64(site.Tensor.Each), tensor: site.Tensor, stack: b.stack(false, site.Stack), died: Forever, atEnd: int32(i), seq: a.Seq})
	}
}

func (b *builder) addOld(o oldAllocation) {
	b.isOld[o.ptr] = uint32(len(b.old))
	b.old = append(b.old, o)
}

// event enters what an event does to the buffer at its address. An address holds one buffer: if a history says that two are
// live at one, the older one ends there.
func (b *builder) event(moment uint32, e *tables.EventEntry) {
	switch walk.Of(e.Action) {
	case walk.Grow, walk.Shrink:
		b.segmentEvents = append(b.segmentEvents, moment-1)
	case walk.Begin:
		if !b.counts(e.Tensor) {
			return
		}
		b.end(moment, e.Ptr)
		b.open[e.Ptr] = uint32(len(b.ptrs))
		b.All.born, b.All.died = append(b.All.born, moment), append(b.All.died, Forever)
		b.All.bytes = append(b.All.bytes, requested(e))
		b.ptrs = append(b.ptrs, e.Ptr)
		b.stacks = append(b.stacks, b.stack(true, e.Stack))
		b.kinds = append(b.kinds, b.kind(e.Tensor))
	case walk.End:
		if b.counts(e.Tensor) && !b.end(moment, e.Ptr) {
			b.addOld(oldAllocation{ptr: e.Ptr, bytes: requested(e), tensor: e.Tensor, stack: b.stack(true, e.Stack), died: moment, atEnd: -1})
		}
	case walk.Complete:
		if id, ok := b.latest[e.Ptr]; ok {
			b.pending = append(b.pending, pendingSpan{id: id, from: b.All.died[id], to: moment})
			delete(b.latest, e.Ptr)
		}
	}
}

// end ends what is live at an address, and reports whether anything is.
func (b *builder) end(moment uint32, p alloc.Ptr) bool {
	if id, ok := b.open[p]; ok {
		b.All.died[id] = moment
		delete(b.open, p)
		if b.latest != nil {
			b.latest[p] = id
		}
		return true
	}
	if i, ok := b.isOld[p]; ok && b.old[i].died == Forever {
		b.old[i].died = moment
		return true
	}
	return false
}

// prepend puts what began before the history before the rest: first what is live at the end, by its number, then what ended
// last. So long-lived allocations are at the bottom.
func (b *builder) prepend() {
	slices.SortStableFunc(b.old, func(x, y oldAllocation) int {
		return cmp.Or(cmp.Compare(y.died, x.died), cmp.Compare(x.seq, y.seq))
	})
	n := len(b.old)
	if n == 0 {
		return
	}
	a := b.All
	a.born, a.died, a.bytes = slices.Insert(a.born, 0, make([]uint32, n)...), slices.Insert(a.died, 0, make([]uint32, n)...), slices.Insert(a.bytes, 0, make([]int64, n)...)
	b.ptrs, b.stacks, b.kinds = slices.Insert(b.ptrs, 0, make([]alloc.Ptr, n)...), slices.Insert(b.stacks, 0, make([]uint32, n)...), slices.Insert(b.kinds, 0, make([]uint16, n)...)
	b.initial = make([]int32, n)
	for i, o := range b.old {
		a.died[i], a.bytes[i] = o.died, o.bytes
		b.ptrs[i], b.stacks[i], b.kinds[i], b.initial[i] = o.ptr, o.stack, b.kind(o.tensor), o.atEnd
	}
	for i := range b.pending {
		b.pending[i].id += uint32(n)
	}
}

// clock converts between moments and times.
type clock struct {
	events  []tables.EventEntry
	sorted  []time.Duration // of the events, where theirs are not sorted
	start   time.Time       // of the axis
	offset  time.Duration   // of the start from the history's
	seconds float64         // from the start to the snapshot
	untimed bool
}

func newClock(d *snapshot.Dump, events []tables.EventEntry) clock {
	past := tables.OfHistory(&d.History)
	c := clock{events: events, start: d.Snapshot.Time, untimed: d.Snapshot.Time.IsZero()}
	if len(events) == 0 {
		return c
	}
	c.offset = events[0].Since
	c.start = past.Start.Add(c.offset)
	latest, sorted := events[0].Since, true
	for i := range events {
		sorted = sorted && events[i].Since >= latest
		latest = max(latest, events[i].Since)
	}
	if !sorted { // a clock may jump: times do not decrease
		c.sorted = make([]time.Duration, len(events))
		latest = c.offset
		for i := range events {
			latest = max(latest, events[i].Since)
			c.sorted[i] = latest
		}
	}
	c.seconds = (latest - c.offset).Seconds()
	if end := d.Snapshot.Time.Sub(c.start).Seconds(); !c.untimed {
		c.seconds = max(c.seconds, end)
	}
	return c
}

func (c *clock) since(event int) time.Duration {
	if c.sorted != nil {
		return c.sorted[event] - c.offset
	}
	return c.events[event].Since - c.offset
}

// at returns when a moment began, in seconds from the start.
func (c *clock) at(moment uint32) float64 {
	switch {
	case len(c.events) == 0 || moment == 0:
		return 0
	case int(moment) > len(c.events):
		return c.seconds
	}
	return c.since(int(moment) - 1).Seconds()
}

// until returns how many events were before a time, or at it if that is included.
func (c *clock) until(seconds float64, included bool) uint32 {
	return uint32(sort.Search(len(c.events), func(i int) bool {
		s := c.since(i).Seconds()
		return s > seconds || !included && s == seconds
	}))
}

// Untimed reports whether the events have no times: there is no time axis.
func (x *Index) Untimed() bool { return x.clock.untimed }

// Start returns the time of the first event.
func (x *Index) Start() time.Time { return x.clock.start }

// Seconds returns the length of the time axis.
func (x *Index) Seconds() float64 { return x.clock.seconds }

// At returns when a moment began, in seconds from Start.
func (x *Index) At(moment uint32) float64 { return x.clock.at(moment) }

// MomentAt returns the moment of a time: the events up to it had happened.
func (x *Index) MomentAt(seconds float64) uint32 { return x.clock.until(seconds, true) }

// Lifetime returns how long an allocation was live, in seconds, or in events if the index is untimed. What is live at the end
// counts up to it.
func (x *Index) Lifetime(id uint32) float64 {
	born, died := x.Life(id)
	died = min(died, x.Moments()-1)
	if x.Untimed() {
		return float64(died) - float64(born)
	}
	if x.All.died[id] == Forever {
		return x.Seconds() - x.At(born)
	}
	return x.At(died) - x.At(born)
}
