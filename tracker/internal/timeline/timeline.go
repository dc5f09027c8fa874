// Package timeline shows a dump's memory over time, as charts take it. It draws nothing.
package timeline

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Timeline is a dump's device memory over time, for a chart: columns of equal length, one entry for
// each moment. If the history is long, each stretch of time keeps its highest and its last level,
// so that no peak is lost.
type Timeline struct {
	Start   time.Time `json:"start,omitzero"`
	Seconds []float64 `json:"seconds"`           // since Start; they do not decrease
	Untimed bool      `json:"untimed,omitempty"` // the source knows no times: each event takes a second
	Events  []uint64  `json:"-"`                 // the number of the event that comes next

	// Kinds and Sites are the requested bytes of the live buffers, by kind and by line of code. Each adds up to what was
	// live. Sites has the lines that ever had most, and one layer for all others.
	Kinds []Layer `json:"kinds"`
	Sites []Layer `json:"lines"`

	// These are nil where nothing new is known.
	Allocated []*alloc.Bytes `json:"allocated"`
	Reserved  []*alloc.Bytes `json:"reserved"`
	Driver    []*alloc.Bytes `json:"driver"` // memory in use, as the driver says

	Peak  *Moment  `json:"peak"`  // when most was live of all; nil if that was before the history
	Marks []Moment `json:"marks"` // the latest 500
	OOMs  []Moment `json:"ooms"`  // the latest 500
}

// Layer is a part of the live buffers over time.
type Layer struct {
	Name  string        `json:"name"`
	Bytes []alloc.Bytes `json:"bytes"`
}

// Moment is an instant of a Timeline.
type Moment struct {
	Seconds float64     `json:"seconds"`
	Bytes   alloc.Bytes `json:"bytes"`          // live bytes; for a refused request, the bytes asked for
	Mark    int         `json:"mark,omitempty"` // its number
}

// The bounds of a Timeline.
const (
	stretches  = 500 // stretches of time, two moments each
	maxLayers  = 8   // layers of call sites and of kinds, apart from the layer of the others
	maxMoments = 500
)

// New returns the dump's memory over time. Its cost follows the events
// and call stacks, its size is bounded.
func New(r *snapshot.Dump) *Timeline {
	begin := walk.BeginningOf(r)
	_, first := walk.Events(r)
	end, untimed := max(0, r.Snapshot.Time.Sub(begin.Time)), r.Snapshot.Time.IsZero()
	if untimed {
		end = time.Duration(r.Snapshot.Events-first) * time.Second
	}
	b := timelineBuilder{
		Timeline: Timeline{Start: begin.Time, Untimed: untimed, Marks: []Moment{}, OOMs: []Moment{}},
		siteOf:   make(stackLines),
		segments: begin.Segments,
		stretch:  max(1, end/stretches),
		peak:     r.Snapshot.Peak.Bytes,
		marks:    make(map[int]*snapshot.Mark),
		failed:   latestError(r),
	}
	for _, m := range r.Marks {
		b.marks[m.Seq] = m
	}
	b.split(r)
	b.now.Allocated, b.now.Reserved = begin.Allocated, begin.Reserved
	b.now.next = first
	b.point(0, &b.now, b.segments)
	b.top(0)
	for e := range r.Events() {
		at := e.Time.Sub(b.Start)
		if untimed {
			at = time.Duration(e.Seq+1-first) * time.Second
		}
		b.event(max(b.latest, min(at, end)), e) // a clock may jump: times do not decrease
	}
	b.flush()
	b.now.Allocated, b.now.Reserved, b.now.next = r.Snapshot.Allocated, r.Snapshot.Reserved, r.Snapshot.Events
	b.point(end, &b.now, true)
	b.driver(r.Snapshot.Levels)
	b.Marks, b.OOMs = lastMoments(b.Marks), lastMoments(b.OOMs)
	b.Kinds, b.Sites = withoutEmpty(b.Kinds), withoutEmpty(b.Sites)
	return &b.Timeline
}

// latestError returns the number of the latest out-of-memory event, to which a moment belongs, or a
// number past all events if there is none.
func latestError(r *snapshot.Dump) uint64 {
	for e := range walk.Backward(r) {
		if e.Action == mem.OutOfMemory {
			return e.Seq
		}
	}
	return r.Snapshot.Events
}

// withoutEmpty removes the layer of the others if it was always empty.
func withoutEmpty(layers []Layer) []Layer {
	if last := len(layers) - 1; slices.Max(layers[last].Bytes) == 0 {
		return layers[:last]
	}
	return layers
}

// moment is the state at an instant: the levels, and the layers' live bytes.
type moment struct {
	at   time.Duration
	next uint64 // event
	walk.Levels
	kinds [maxLayers + 1]alloc.Bytes
	sites [maxLayers + 1]alloc.Bytes
}

// timelineBuilder keeps of each stretch of time its highest and its last state.
type timelineBuilder struct {
	Timeline
	siteOf   stackLines
	kinds    layers[mem.Kind]
	sites    layers[mem.Frame]
	segments bool // the events include segments, and so reserved memory
	peak     alloc.Bytes
	marks    map[int]*snapshot.Mark
	failed   uint64 // the number of the latest error
	latest   time.Duration

	now       moment
	stretch   time.Duration
	in        time.Duration // the stretch
	any       bool
	high, end moment // highest and last moment of the stretch
}

// layers maps names to their layers. Names without one share the last layer.
type layers[K comparable] struct {
	place map[K]int
	names []string
}

func (l *layers[K]) of(key K) int {
	if place, ok := l.place[key]; ok {
		return place
	}
	return maxLayers
}

// split chooses the layers of the chart, and sets b.now to what was live before the
// first event: what is live at the end, less what the events changed.
func (b *timelineBuilder) split(r *snapshot.Dump) {
	byKind, sites := newExtent[mem.Kind](), newExtent[mem.Frame]()
	for site := range r.Snapshot.CallSites() {
		if site.Memory.OnHost() {
			continue
		}
		b.siteOf[lines.Identify(site.Stack)] = site.CallSite
		byKind.at(site.Kind).level += site.Live.Bytes
		sites.at(site.CallSite).level += site.Live.Bytes
	}
	for e := range r.Events() {
		if change := walk.Change(&e).Live; change != 0 {
			byKind.add(e.Kind, change)
			sites.add(b.siteOf.of(e.Stack), change)
		}
	}
	names := lines.NewNames(maps.Keys(sites.of))
	b.kinds.names, b.kinds.place = byKind.layers(mem.Kind.String, kinds.Compare[mem.Kind])
	b.sites.names, b.sites.place = sites.layers(names.Of, nil)
	for kind, e := range byKind.of {
		before := max(0, e.level-e.change)
		b.now.kinds[b.kinds.of(kind)] += before
		b.now.Live += before
	}
	for site, e := range sites.of {
		b.now.sites[b.sites.of(site)] += max(0, e.level-e.change)
	}
	for _, name := range b.kinds.names {
		b.Kinds = append(b.Kinds, Layer{Name: name})
	}
	for _, name := range b.sites.names {
		b.Sites = append(b.Sites, Layer{Name: name})
	}
	b.Kinds, b.Sites = append(b.Kinds, Layer{Name: "other kinds"}), append(b.Sites, Layer{Name: "other lines"})
}

// extent finds how much memory each key had: its level at the end, its change over all events, and
// the highest and lowest change.
type extent[K comparable] struct{ of map[K]*span }

type span struct{ level, change, high alloc.Bytes }

func newExtent[K comparable]() extent[K] { return extent[K]{make(map[K]*span)} }

func (x extent[K]) at(key K) *span {
	s := x.of[key]
	if s == nil {
		s = new(span)
		x.of[key] = s
	}
	return s
}

func (x extent[K]) add(key K, change alloc.Bytes) {
	s := x.at(key)
	s.change += change
	s.high = max(s.high, s.change)
}

// layers returns the keys with the highest levels, sorted by compare if that is given.
func (x extent[K]) layers(name func(K) string, compare func(K, K) int) (names []string, place map[K]int) {
	most := func(key K) alloc.Bytes {
		s := x.of[key]
		return max(0, s.level-s.change) + s.high
	}
	var keys []K
	for key := range x.of {
		if most(key) > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Or(cmp.Compare(most(b), most(a)), cmp.Compare(name(a), name(b))) })
	keys = keys[:min(len(keys), maxLayers)]
	if compare != nil {
		slices.SortFunc(keys, compare)
	}
	place = make(map[K]int)
	for i, key := range keys {
		place[key] = i
		names = append(names, name(key))
	}
	return names, place
}

func (b *timelineBuilder) event(at time.Duration, e snapshot.Event) {
	b.latest, b.now.next = at, e.Seq+1
	change := walk.Change(&e)
	b.now.Levels = b.now.Add(change)
	if change.Live != 0 {
		b.now.Live = max(0, b.now.Live)
		k, s := b.kinds.of(e.Kind), b.sites.of(b.siteOf.of(e.Stack))
		b.now.kinds[k] = max(0, b.now.kinds[k]+change.Live)
		b.now.sites[s] = max(0, b.now.sites[s]+change.Live)
		b.top(at)
	}
	b.level(at)
	switch e.Action {
	case mem.OutOfMemory:
		b.OOMs = keepMoments(append(b.OOMs, Moment{Seconds: at.Seconds(), Bytes: e.Requested}))
		if e.Seq == b.failed {
			b.flush()
		}
	case mem.Marked:
		b.Marks = keepMoments(append(b.Marks, Moment{Seconds: at.Seconds(), Bytes: b.now.Live, Mark: e.Mark}))
		if m := b.marks[e.Mark]; m != nil {
			b.flush()
			known := b.now
			known.Allocated, known.Reserved = m.Allocated, m.Reserved
			b.point(at, &known, true)
			b.driver(m.Levels)
		}
	}
}

// top notes the peak.
func (b *timelineBuilder) top(at time.Duration) {
	if b.Peak == nil && b.peak > 0 && b.now.Live >= b.peak {
		b.Peak = &Moment{Seconds: at.Seconds(), Bytes: b.peak}
	}
}

func (b *timelineBuilder) level(at time.Duration) {
	if in := at / b.stretch; !b.any || in != b.in {
		b.flush()
		b.in, b.any = in, true
		b.high.Live = -1
	}
	b.now.at = at
	if b.now.Live > b.high.Live { // of equal moments the first
		b.high = b.now
	}
	b.end = b.now
}

// flush writes the stretch's moments.
func (b *timelineBuilder) flush() {
	if !b.any {
		return
	}
	b.any = false
	if b.high.at != b.end.at {
		b.point(b.high.at, &b.high, b.segments)
	}
	b.point(b.end.at, &b.end, b.segments)
}

func (b *timelineBuilder) point(at time.Duration, m *moment, reserved bool) {
	b.Seconds, b.Events = append(b.Seconds, at.Seconds()), append(b.Events, m.next)
	for i := range b.Kinds {
		b.Kinds[i].Bytes = append(b.Kinds[i].Bytes, m.kinds[layerAt(i, len(b.Kinds))])
	}
	for i := range b.Sites {
		b.Sites[i].Bytes = append(b.Sites[i].Bytes, m.sites[layerAt(i, len(b.Sites))])
	}
	levels := m.Levels
	b.Allocated = append(b.Allocated, &levels.Allocated)
	if reserved {
		b.Reserved = append(b.Reserved, &levels.Reserved)
	} else {
		b.Reserved = append(b.Reserved, nil)
	}
	b.Driver = append(b.Driver, nil)
}

// layerAt returns the index of a layer's bytes in a moment. The last layer is the sum of the
// others.
func layerAt(i, layers int) int {
	if i == layers-1 {
		return maxLayers
	}
	return i
}

// driver says what the driver had in use at the last moment.
func (b *timelineBuilder) driver(l snapshot.Levels) {
	if l.DriverUsed >= 0 {
		b.Driver[len(b.Driver)-1] = &l.DriverUsed
	}
}

// keepMoments bounds a list that grows.
func keepMoments(moments []Moment) []Moment {
	if len(moments) > 2*maxMoments {
		moments = append(moments[:0], lastMoments(moments)...)
	}
	return moments
}

func lastMoments(moments []Moment) []Moment { return moments[max(0, len(moments)-maxMoments):] }

// stackLines finds the lines of code of the stacks of a snapshot and its history.
type stackLines map[lines.StackID]mem.Frame

// of returns the call site of a stack.
func (l stackLines) of(s mem.Stack) mem.Frame {
	id := lines.Identify(s)
	line, ok := l[id]
	if !ok {
		line = s.CallSite()
		l[id] = line
	}
	return line
}
