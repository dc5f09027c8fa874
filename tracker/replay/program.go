package replay

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// program is the sequence of requests that a history makes to an allocator.
type program struct {
	dump     *snapshot.Dump
	first    uint64              // the number of its first event
	start    *snapshot.Snapshot  // the state before the first event
	buffers  []buffer            // those that were live at the start come first, oldest first
	begun    int                 // how many those are
	at       map[alloc.Ptr]int32 // those by address
	ops      []op
	arenas   []arena
	recorded Levels
	events   int64
	gap      *gap
}

// arena is memory of one stream or private pool, which serves no other. It has its own cache.
type arena struct {
	stream  alloc.Stream
	private string // pool: see alloc.Segment
}

// buffer is one of the program's.
type buffer struct {
	requested  alloc.Bytes
	allocated  alloc.Bytes // as recorded
	ptr        alloc.Ptr   // as recorded
	arena      uint16
	foreign    bool // registered: its memory is the device's and not the allocator's
	incomplete bool // its allocation or its free is not in the history
	freed      bool
}

// op is a step of a program.
type op struct {
	do     action
	buffer int32  // for ops about a buffer
	event  uint32 // index from the first event
	bytes  alloc.Bytes
	ptr    alloc.Ptr // for opDriver
}

type action uint8

const (
	opAlloc action = iota + 1
	opFree
	opFreePending   // a free while work on another stream used the memory
	opFreeCompleted // that work is done: the memory can be reused
	opEmpty         // the program empties the cache
	opRetry         // when recorded, the cache was emptied for a request that the driver refused
	opFailed        // a request that failed when it was recorded
	opDriverAlloc   // when recorded, the driver returned a segment for the next request
	opDriverFree    // when recorded, the cache released memory to the driver
)

// lowest returns the peaks of the buffers with a complete life: a lower bound of what the program needed.
func (p *program) lowest() (l Levels) {
	for i := range p.begun {
		p.count(&l, int32(i), 1)
	}
	l.peak()
	for _, o := range p.ops {
		switch o.do {
		case opAlloc:
			p.count(&l, o.buffer, 1)
			l.peak()
		case opFree, opFreePending:
			p.count(&l, o.buffer, -1)
		}
	}
	return l
}

func (p *program) count(l *Levels, i int32, sign alloc.Bytes) {
	if b := &p.buffers[i]; !b.incomplete {
		l.add(sign*b.requested, sign*b.allocated, b.foreign)
	}
}

// foreignPeak is the most that registered buffers hold.
func (p *program) foreignPeak() (peak alloc.Bytes) {
	level := alloc.Bytes(0)
	count := func(i int32, sign alloc.Bytes) {
		if b := &p.buffers[i]; b.foreign {
			level += sign * b.allocated
			peak = max(peak, level)
		}
	}
	for i := range p.begun {
		count(int32(i), 1)
	}
	for _, o := range p.ops {
		switch o.do {
		case opAlloc:
			count(o.buffer, 1)
		case opFree:
			count(o.buffer, -1)
		}
	}
	return peak
}

// compile turns a dump into a program, from the events up to the snapshot.
func compile(r *snapshot.Dump) (*program, error) {
	if r == nil || r.Snapshot == nil {
		return nil, fmt.Errorf("replay: no dump")
	}
	_, first := walk.Events(r)
	start, err := rewind.At(r, first)
	if err != nil {
		return nil, fmt.Errorf("replay: the state before the first event: %w", err)
	}
	past := tables.OfHistory(&r.History)
	if len(past.Events) == 0 {
		return nil, fmt.Errorf("replay: %w", walk.SourceOf(r.Snapshot).NoHistory())
	}
	c := &compiler{
		program:    &program{dump: r, first: first, start: start},
		hasRetries: r.Snapshot.Cache != nil,
		open:       make(map[alloc.Ptr]int32),
		frees:      make(map[alloc.Ptr]int),
		arenas:     make(map[arena]uint16),
	}
	segments := r.Snapshot.Segments
	if c.named = len(past.Pools) > 0; c.named {
		segments = start.Segments
	}
	for i := range segments {
		c.enter(walk.SpanOf(&segments[i]))
	}
	c.begin()
	for e := range r.Events() {
		c.event(&e)
	}
	c.end()
	return c.program, nil
}

// compiler goes through the events of a program.
type compiler struct {
	*program
	open   map[alloc.Ptr]int32 // the live buffer at an address
	frees  map[alloc.Ptr]int   // the op of the latest free at an address
	arenas map[arena]uint16
	// private are the segments of private pools, which identify the pool of a buffer by its address: the present segments if
	// events name pools, otherwise those at the end.
	private    walk.Spans
	named      bool
	emptying   emptying
	hasRetries bool   // the history has events Retried: it is of a tracker with a cache
	retrying   bool   // the cache releases segments for a request that the driver refused
	unclear    bool   // the history does not show whether a request or the program emptied the cache
	seq        uint32 // number of the event
	last       int    // the op of the latest free, which a FreeFailed may still undo
	before     []op   // allocations that the history lacks: the buffers are assumed to exist from the beginning
}

// maxArenas bounds the arenas of private pools: those beyond count as the default pool.
const maxArenas = 1 << 10

func (c *compiler) arena(a arena) uint16 {
	n, ok := c.arenas[a]
	if !ok && a.private != "" && len(c.program.arenas) >= maxArenas {
		return c.arena(arena{stream: a.stream})
	}
	if !ok {
		n = uint16(len(c.program.arenas))
		c.arenas[a] = n
		c.program.arenas = append(c.program.arenas, a)
	}
	return n
}

// enter keeps a segment of a private pool.
func (c *compiler) enter(s walk.Span) {
	if s.Private != "" && c.private.At(s.Ptr) == nil {
		c.private.Insert(s)
	}
}

func arenaOf(s alloc.Segment) arena { return arena{s.Stream, s.Private} }

// arenaAt returns the arena of a buffer.
func (c *compiler) arenaAt(p alloc.Ptr, stream alloc.Stream) uint16 {
	if s := c.private.At(p); s != nil {
		return c.arena(arena{s.Stream, s.Private})
	}
	return c.arena(arena{stream: stream})
}

// begin adds what was live before the first event: the buffers, and blocks in use that have no buffer.
func (c *compiler) begin() {
	c.recorded.at(c.start.Reserved, 0, 0)
	for a := range c.start.Allocations() {
		if a.Memory.OnHost() {
			continue
		}
		c.open[a.Ptr] = c.add(buffer{requested: a.Requested, allocated: a.Allocated, ptr: a.Ptr, arena: c.arenaAt(a.Ptr, a.Stream), foreign: a.Registered})
		c.recorded.add(a.Requested, a.Allocated, a.Registered)
	}
	for _, s := range c.start.Segments {
		in := c.arena(arenaOf(s))
		for _, b := range s.Blocks {
			if i, ok := c.open[b.Ptr]; ok {
				c.buffers[i].arena = in
			} else if b.State != alloc.Inactive {
				c.open[b.Ptr] = c.add(buffer{requested: b.Requested, allocated: b.Size, ptr: b.Ptr, arena: in})
				c.recorded.add(b.Requested, b.Size, false)
			}
		}
	}
	c.begun, c.at = len(c.buffers), maps.Clone(c.open)
	c.recorded.peak()
}

func (c *compiler) add(b buffer) int32 {
	c.buffers = append(c.buffers, b)
	return int32(len(c.buffers) - 1)
}

func (c *compiler) event(e *snapshot.Event) {
	c.seq = uint32(e.Seq - c.first)
	c.events++
	if e.Memory.OnHost() { // host memory takes nothing of the device
		return
	}
	c.retry(e)
	switch e.Action {
	case mem.Allocated, mem.Registered:
		c.alloc(e)
	case mem.Freed, mem.Unregistered:
		c.free(e)
	case mem.FreeFailed:
		c.freeFailed(e)
	case mem.FreeCompleted:
		c.freeCompleted(e)
	case mem.OutOfMemory:
		c.recorded.OOMs++
		if e.Requested >= 0 {
			c.ops = append(c.ops, op{do: opFailed, event: c.seq, bytes: e.Requested, buffer: int32(c.arena(arena{stream: e.Stream}))})
		}
	case mem.SegmentAllocated:
		c.recorded.DriverAllocs++
		c.recorded.reserve(e.Allocated)
		c.enter(walk.Span{Ptr: e.Ptr, Size: e.Allocated, Stream: e.Stream, Private: e.Private})
		c.ops = append(c.ops, op{do: opDriverAlloc, event: c.seq, bytes: e.Allocated, ptr: e.Ptr})
	case mem.SegmentFreed:
		c.recorded.DriverFrees++
		c.recorded.reserve(-e.Allocated)
		c.empty(e)
		if c.named {
			c.private.Cut(e.Ptr, e.Allocated)
		}
		c.ops = append(c.ops, op{do: opDriverFree, event: c.seq, bytes: e.Allocated})
	}
	c.recorded.peak()
}

func (c *compiler) alloc(e *snapshot.Event) {
	if i, live := c.open[e.Ptr]; live { // its free is missing
		c.markIncomplete(i, e.Ptr)
		c.ops = append(c.ops, op{do: opFree, event: c.seq, buffer: i})
		c.buffers[i].freed = true
		c.recorded.add(-c.buffers[i].requested, -c.buffers[i].allocated, c.buffers[i].foreign)
	}
	foreign := e.Action == mem.Registered
	i := c.add(buffer{requested: e.Requested, allocated: e.Allocated, ptr: e.Ptr, arena: c.arenaAt(e.Ptr, e.Stream), foreign: foreign})
	c.open[e.Ptr] = i
	c.ops = append(c.ops, op{do: opAlloc, event: c.seq, buffer: i})
	c.recorded.add(e.Requested, e.Allocated, foreign)
}

func (c *compiler) free(e *snapshot.Event) {
	i, live := c.open[e.Ptr]
	if !live { // its allocation is missing: it may have been there from the beginning
		i = c.add(buffer{requested: e.Requested, allocated: e.Allocated, ptr: e.Ptr, arena: c.arenaAt(e.Ptr, e.Stream), foreign: e.Action == mem.Unregistered})
		c.markIncomplete(i, e.Ptr)
		c.before = append(c.before, op{do: opAlloc, buffer: i})
	} else {
		c.recorded.add(-c.buffers[i].requested, -c.buffers[i].allocated, c.buffers[i].foreign)
	}
	delete(c.open, e.Ptr)
	c.buffers[i].freed = true
	c.last = len(c.ops)
	c.frees[e.Ptr] = c.last
	c.ops = append(c.ops, op{do: opFree, event: c.seq, buffer: i})
}

// freeCompleted makes the memory of a buffer usable only from now on.
func (c *compiler) freeCompleted(e *snapshot.Event) {
	if _, live := c.open[e.Ptr]; live { // a block that was pending before the first event
		c.free(e)
		return
	}
	if i, pending := c.markPending(e.Ptr); pending {
		c.ops = append(c.ops, op{do: opFreeCompleted, event: c.seq, buffer: i})
	}
}

// markPending turns the latest free at an address into one that leaves its memory pending, and returns the buffer. It reports
// false if there is no such free, or if the memory is not the allocator's.
func (c *compiler) markPending(p alloc.Ptr) (int32, bool) {
	at, ok := c.frees[p]
	if !ok || c.ops[at].do != opFree || c.buffers[c.ops[at].buffer].foreign {
		return 0, false
	}
	c.ops[at].do = opFreePending
	return c.ops[at].buffer, true
}

// freeFailed undoes the latest free if e is its failure. Otherwise the buffer is live again from e on.
func (c *compiler) freeFailed(e *snapshot.Event) {
	if c.last < len(c.ops) && c.ops[c.last].do == opFree {
		if i := c.ops[c.last].buffer; c.buffers[i].ptr == e.Ptr {
			c.ops[c.last] = op{}
			c.buffers[i].freed = false
			c.open[e.Ptr] = i
			c.recorded.add(c.buffers[i].requested, c.buffers[i].allocated, c.buffers[i].foreign)
			return
		}
	}
	c.alloc(e)
}

// markIncomplete marks a buffer whose allocation or free is missing, and counts it once.
func (c *compiler) markIncomplete(i int32, p alloc.Ptr) {
	if c.gap == nil {
		c.gap = &gap{Event: c.first + uint64(c.seq), Reason: fmt.Sprintf("the buffer at %v", p)}
	}
	if !c.buffers[i].incomplete {
		c.gap.Buffers++
		c.gap.Bytes += c.buffers[i].requested
	}
	c.buffers[i].incomplete = true
}

// end compares what is live after the last event with the snapshot.
func (c *compiler) end() {
	kept := c.liveAtEnd()
	c.addUnseen()
	c.leavePending()
	c.markUnfreed(kept)
	c.countMissing()
	c.ops = append(c.before, c.ops...)
	c.fixRecorded()
	if c.gap != nil {
		least := c.lowest()
		c.gap.LeastRequested, c.gap.LeastAllocated = least.PeakRequested, least.PeakAllocated
	}
}

// liveAtEnd returns the addresses at which the snapshot has a buffer or a block in use.
func (c *compiler) liveAtEnd() map[alloc.Ptr]bool {
	live := make(map[alloc.Ptr]bool, len(c.open))
	for a := range c.dump.Snapshot.Allocations() {
		if !a.Memory.OnHost() {
			live[a.Ptr] = true
		}
	}
	for _, s := range c.dump.Snapshot.Segments {
		for _, b := range s.Blocks {
			if b.State != alloc.Inactive {
				live[b.Ptr] = true
			}
		}
	}
	return live
}

// addUnseen adds the snapshot's buffers whose allocation is missing. They may have existed from the beginning.
func (c *compiler) addUnseen() {
	for a := range c.dump.Snapshot.Allocations() {
		if _, ok := c.open[a.Ptr]; ok || a.Memory.OnHost() {
			continue
		}
		i := c.add(buffer{requested: a.Requested, allocated: a.Allocated, ptr: a.Ptr, arena: c.arenaAt(a.Ptr, a.Stream), foreign: a.Registered})
		c.markIncomplete(i, a.Ptr)
		c.before = append(c.before, op{do: opAlloc, buffer: i})
	}
}

// leavePending marks the frees whose blocks are still pending in the snapshot.
func (c *compiler) leavePending() {
	for _, s := range c.dump.Snapshot.Segments {
		for _, b := range s.Blocks {
			if _, live := c.open[b.Ptr]; b.State == alloc.Pending && !live {
				c.markPending(b.Ptr)
			}
		}
	}
}

// markUnfreed marks the buffers that are live after the last event but not in the snapshot: their
// free is missing. It goes through them in order, because a note names the first one.
func (c *compiler) markUnfreed(kept map[alloc.Ptr]bool) {
	for i := range c.buffers {
		b := &c.buffers[i]
		if _, live := c.open[b.ptr]; live && !b.freed && !kept[b.ptr] {
			c.markIncomplete(int32(i), b.ptr)
		}
	}
}

// countMissing counts the events between the last one of the history and the snapshot.
func (c *compiler) countMissing() {
	n := uint64(c.events) + c.first
	if n >= c.dump.Snapshot.Events {
		return
	}
	if c.gap == nil {
		c.gap = &gap{Event: n, Reason: "the latest events"}
	}
	c.gap.Events = int64(c.dump.Snapshot.Events - n)
}

// fixRecorded corrects the recorded levels that the events do not show. Without a cache, only the buffers themselves are
// reserved. A tracker's own cache retries before each failure; more failures than retries mean that the cache is another one,
// whose retries are not in the history.
func (c *compiler) fixRecorded() {
	if len(c.start.Segments) == 0 && c.recorded.DriverAllocs == 0 {
		c.recorded.PeakReserved = c.recorded.PeakAllocated
	}
	if c.unclear || c.hasRetries && c.recorded.OOMs > c.recorded.Retries {
		c.recorded.Retries = -1
	}
}

// emptying is a run of events in which the cache releases segments.
type emptying struct {
	active bool
	at     int       // index of its op
	stack  mem.Stack // stack that all its events share; nil if they have none or different ones
}

// empty adds that the cache released a segment.
func (c *compiler) empty(e *snapshot.Event) {
	if !c.emptying.active {
		c.emptying = emptying{active: true, at: len(c.ops), stack: e.Stack}
		do := opEmpty
		if c.retrying {
			do = opRetry
		}
		c.ops = append(c.ops, op{do: do, event: c.seq})
		return
	}
	if !slices.Equal(c.emptying.stack, e.Stack) {
		c.emptying.stack = nil
	}
}

// retry decides, at the event after a run, what emptied the cache: the program, at a line of its own, or a request that the
// driver refused and that is then tried again. A tracker's history has an event for the latter. In one of PyTorch, the
// segments are then freed and allocated at one call stack. Where a history has neither, this is unclear, and the program is
// assumed.
func (c *compiler) retry(e *snapshot.Event) {
	run := c.emptying
	if c.hasRetries {
		c.followRetries(e)
		return
	}
	switch {
	case e.Action == mem.SegmentFreed:
		return
	case !run.active:
		c.unclear = c.unclear || e.Action == mem.OutOfMemory // there may have been nothing to give back
	case e.Action != mem.SegmentAllocated && e.Action != mem.OutOfMemory:
	case len(run.stack) == 0 || len(e.Stack) == 0:
		c.unclear = true
	case slices.Equal(run.stack, e.Stack):
		c.recorded.Retries++
		c.ops[run.at].do = opRetry
	}
	c.emptying = emptying{}
}

// followRetries follows the events Retried. A retry ends with the segment that the driver then returns, or with an error.
func (c *compiler) followRetries(e *snapshot.Event) {
	switch e.Action {
	case mem.SegmentFreed:
		return
	case mem.Retried:
		c.recorded.Retries++
		c.retrying = true
	case mem.SegmentAllocated, mem.OutOfMemory:
		c.retrying = false
	}
	c.emptying = emptying{}
}
