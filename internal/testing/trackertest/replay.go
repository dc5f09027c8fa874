package trackertest

import (
	"fmt"
	"maps"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// replay is a ledger made of nothing but a history's events, in their order.
type replay struct {
	t        require.TestingT
	next     uint64 // the number of the event to come
	time     time.Time
	live     map[alloc.Ptr]*entry
	gone     map[alloc.Ptr]*entry // the last that left from there: a failed free brings it back
	segments map[alloc.Ptr]alloc.Bytes
	ooms     int64
	retries  int64
	lost     int
	open     map[uint64]*sections.MemoryUse // of the sections, by span

	level, peak, total    mem.Tally
	allocated, registered alloc.Bytes
	host                  alloc.Bytes // no tracker here has host memory of its own: it is registered
	sites, atPeak         map[site]mem.Tally
	ever                  map[site]mem.Tally // by section and line alone
	isPeak                bool               // sites is what atPeak should be
}

// entry is a live buffer: how it came, and what became of it.
type entry struct {
	snapshot.Event
	lost, freeFailed bool
}

// site is what the numbers of call sites are compared by.
type site struct {
	kind    tracker.Kind
	dtype   alloc.DType
	shape   string
	memory  alloc.Memory
	section string
	line    int
}

func siteOf(e snapshot.Event) site {
	return site{e.Kind, e.DType, e.Shape.String(), e.Memory, e.Section, caller(e.Stack).Line}
}

// place is the part of a site that the ledger keeps when it has forgotten the shape.
func (s site) place() site { return site{section: s.section, line: s.line} }

// group is what a mark tells of: where one line frees a buffer and another allocates one like it,
// nothing has changed.
func (s site) group() site {
	return site{kind: s.kind, dtype: s.dtype, shape: s.shape, memory: s.memory}
}

func caller(s mem.Stack) (f mem.Frame) {
	if len(s) > 0 {
		f = s[0]
	}
	return f
}

func newReplay(t require.TestingT) replay {
	return replay{
		t: t, live: make(map[alloc.Ptr]*entry), gone: make(map[alloc.Ptr]*entry),
		segments: make(map[alloc.Ptr]alloc.Bytes), open: make(map[uint64]*sections.MemoryUse),
		sites: make(map[site]mem.Tally), atPeak: make(map[site]mem.Tally), ever: make(map[site]mem.Tally),
	}
}

// witness is told of what has no place in a ledger.
type witness interface {
	marked(e snapshot.Event)
	// began returns what the replay is to measure of the section that the event tells of.
	began(e snapshot.Event) *sections.MemoryUse
	ended(e snapshot.Event)
}

// apply does what an event tells, and checks that it can be.
func (r *replay) apply(e snapshot.Event, to witness) {
	require.Equal(r.t, r.next, e.Seq, "the history has no gap")
	require.False(r.t, e.Time.Before(r.time), "time does not go back")
	r.next, r.time = e.Seq+1, e.Time
	switch e.Action {
	case mem.Allocated, mem.Registered:
		r.enter(&entry{Event: e})
		if !e.Memory.OnHost() {
			r.total = r.total.Add(tally(e.Requested))
		}
		count(r.ever, siteOf(e).place(), tally(e.Requested))
	case mem.Freed, mem.Unregistered:
		r.leave(e)
	case mem.FreeFailed:
		was := r.gone[e.Ptr]
		require.NotNil(r.t, was, "what comes back was freed: %v", e)
		was.freeFailed = true
		r.enter(was)
	case mem.Unreachable:
		was := r.live[e.Ptr]
		require.NotNil(r.t, was, "what is lost is live: %v", e)
		was.lost = true
		r.lost++
	case mem.OutOfMemory:
		r.ooms++
	case mem.Retried:
		r.retries++
	case mem.SegmentAllocated:
		require.Zero(r.t, r.segments[e.Ptr], "the driver gives memory once: %v", e)
		r.segments[e.Ptr] = e.Allocated
	case mem.SegmentFreed:
		require.Equal(r.t, r.segments[e.Ptr], e.Allocated, "what goes back was taken: %v", e)
		delete(r.segments, e.Ptr)
	case mem.Marked:
		to.marked(e)
	case mem.SectionBegan:
		r.open[e.Span] = to.began(e)
		*r.open[e.Span] = sections.MemoryUse{Before: r.level.Bytes, Peak: r.level.Bytes}
	case mem.SectionEnded:
		r.open[e.Span].Used = r.level.Bytes
		delete(r.open, e.Span)
		to.ended(e)
	}
}

func tally(n alloc.Bytes) mem.Tally { return mem.Tally{Count: 1, Bytes: n} }

func (r *replay) enter(e *entry) {
	require.Nil(r.t, r.live[e.Ptr], "an address is live once: %v", e.Event)
	r.live[e.Ptr] = e
	r.add(e.Event, 1)
}

// leave checks that the buffer that is freed is the one that was allocated there.
func (r *replay) leave(e snapshot.Event) {
	was := r.live[e.Ptr]
	require.NotNil(r.t, was, "what is freed is live: %v", e)
	came := was.Event
	came.Seq, came.Time, came.Action = e.Seq, e.Time, e.Action
	require.Equal(r.t, came, e, "a free tells what the allocation did")
	delete(r.live, e.Ptr)
	r.gone[e.Ptr] = was
	r.add(was.Event, -1)
}

// add counts a buffer in or out, and keeps the peak.
func (r *replay) add(e snapshot.Event, n alloc.Bytes) {
	change := mem.Tally{Count: int64(n), Bytes: n * e.Requested}
	if e.Memory.OnHost() {
		r.host += n * e.Allocated
	} else {
		r.level = r.level.Add(change)
		r.allocated += n * e.Allocated
		if e.Action == mem.Registered {
			r.registered += n * e.Allocated
		}
	}
	peaks := r.level.Bytes > r.peak.Bytes
	if r.isPeak && !peaks {
		r.atPeak = maps.Clone(r.sites)
	}
	count(r.sites, siteOf(e), change)
	if r.isPeak = peaks; peaks {
		r.peak = r.level
	}
	for _, use := range r.open {
		use.Peak = max(use.Peak, r.level.Bytes)
	}
}

func (r *replay) resetPeak() { r.peak, r.isPeak = r.level, true }

// sitesAtPeak returns what was live at the moment of most bytes.
func (r *replay) sitesAtPeak() map[site]mem.Tally {
	if r.isPeak {
		return r.sites
	}
	return r.atPeak
}

// look is a snapshot taken at some moment.
type look struct {
	*snapshot.Snapshot
	light bool
	sites bool // to be compared too
}

// compare compares a snapshot with the ledger as it is after the events that it has seen.
func (r *replay) compare(s look) {
	require.Equal(r.t, r.level, s.Live, "live")
	require.Equal(r.t, r.peak, s.Peak, "peak")
	require.Equal(r.t, r.total, s.Total, "total")
	require.Equal(r.t, r.allocated, s.Allocated, "allocated")
	require.Equal(r.t, r.registered, s.Registered, "registered")
	require.Equal(r.t, r.host, s.HostReserved, "host memory")
	require.False(r.t, s.Time.Before(r.time), "a snapshot is no older than what it has seen")

	if s.sites {
		r.compareSites(s)
	}
	if s.light {
		return
	}
	n := 0
	for a := range s.Allocations() {
		e := r.live[a.Ptr]
		require.NotNil(r.t, e, "%v is not live", a)
		require.Equal(r.t, e.allocation(a.Label), a)
		n++
	}
	require.Equal(r.t, len(r.live), n, "live buffers")
}

// compareSites compares what is told by call site and by group.
func (r *replay) compareSites(s look) {
	live, atPeak, ever := make(map[site]mem.Tally), make(map[site]mem.Tally), make(map[site]mem.Tally)
	for x := range s.CallSites() {
		at := site{x.Kind, x.DType, x.Shape.String(), x.Memory, x.Section, caller(x.Stack).Line}
		count(live, at, x.Live)
		count(atPeak, at, x.Peak)
		count(ever, at.place(), x.Total)
	}
	same(r.t, r.sites, live, "live, by call site")
	same(r.t, r.sitesAtPeak(), atPeak, "live at the peak, by call site")
	same(r.t, r.ever, ever, "total, by section and line")
	require.Equal(r.t, r.byMemory(), s.Memory, "types of memory")

	groups := make(map[site]mem.Tally)
	for _, x := range s.Sub(nil) {
		count(groups, site{kind: x.Kind, dtype: x.DType, shape: x.Shape.String(), memory: x.Memory}, x.Tally)
	}
	same(r.t, r.by(site.group), groups, "live, by group")
}

// same compares two maps, and tells the first keys at which they differ.
func same[K, V comparable](t require.TestingT, want, got map[K]V, what string) {
	if maps.Equal(want, got) {
		return
	}
	text := ""
	for _, m := range []map[K]V{want, got} {
		for k := range m {
			w, inWant := want[k]
			g, inGot := got[k]
			if (w != g || inWant != inGot) && len(text) < 2000 {
				text += fmt.Sprintf("\n%+v: want %v (%t), got %v (%t)", k, w, inWant, g, inGot)
			}
		}
	}
	require.FailNow(t, what, text)
}

// byMemory adds up what is live by the type of memory.
func (r *replay) byMemory() (sums map[alloc.Memory]mem.Tally) {
	for at, n := range r.sites {
		if sums == nil {
			sums = make(map[alloc.Memory]mem.Tally)
		}
		sums[at.memory] = sums[at.memory].Add(n)
	}
	return sums
}

// by adds up what is live by a part of the site.
func (r *replay) by(part func(site) site) map[site]mem.Tally {
	sums := make(map[site]mem.Tally)
	for at, n := range r.sites {
		count(sums, part(at), n)
	}
	return sums
}

// count adds to a sum; what comes to nothing is not kept.
func count[K comparable](sums map[K]mem.Tally, at K, n mem.Tally) {
	if sums[at] = sums[at].Add(n); sums[at].IsZero() {
		delete(sums, at)
	}
}

// allocation is how a snapshot shows a live buffer. Labels are in no event.
func (e *entry) allocation(label string) snapshot.Allocation {
	return snapshot.Allocation{
		Seq: e.Seq, Time: e.Time, Ptr: e.Ptr, Requested: e.Requested, Allocated: e.Allocated,
		Group: e.Group, Place: snapshot.Place{Section: e.Section, Stream: e.Stream, Stack: e.Stack, CallSite: caller(e.Stack)},
		Label: label, Registered: e.Action == mem.Registered, Unreachable: e.lost,
	}
}
