package trackertest

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// subject is a tracker, and what it should know.
type subject struct {
	world   *world
	tr      *tracker.MemTracker
	pool    *pool // that its memory comes from
	config  tracker.Config
	owns    bool     // the cache
	whole   *section // that all goroutines work in; nil where they take turns
	report  *report
	ticks   atomic.Int64
	closing atomic.Bool
	frees   atomic.Int64 // since the last check; Close is one too
	replay  replay

	mu       sync.Mutex
	looks    []look // since the last check
	marks    map[int]*snapshot.Mark
	deltas   map[site]mem.Tally // the deltas of all marks, added up
	ooms     int64
	begun    map[string][]*section // by path: those whose beginning the replay has not met
	open     map[uint64]*section   // by span: those whose end it has not met
	finished []*section            // since the last check
	rows     map[string]sections.Row
	blocks   []string  // what the report says of the marks since the last check
	lost     []*record // live, but unreachable, so that the program cannot free them
	everLost int

	// Once it is closed: frees that the driver had refused at the last check, and
	// whether it has everything that is free.
	refused   int
	givenBack bool
}

// start is when every tracker's clock begins. It ticks at each look, so that no two
// events are of one time.
var start = time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)

func newSubject(w *world, from *pool, ownCache bool) *subject {
	s := &subject{
		world: w, pool: from, owns: ownCache, replay: newReplay(w.t),
		marks: make(map[int]*snapshot.Mark), deltas: make(map[site]mem.Tally),
		begun: make(map[string][]*section), open: make(map[uint64]*section), rows: make(map[string]sections.Row),
	}
	s.report = &report{called: func() { w.callback(s) }}
	if w.rand.IntN(3) == 0 {
		s.report.rand = rand.New(rand.NewPCG(w.rand.Uint64(), 0))
	}
	// What is lost is found in a goroutine of the runtime's, at a time that no model knows:
	// a check waits for it. See waitCollected.
	lost := max(0, w.rand.IntN(6)-3)
	s.config = tracker.Config{
		Device: w.device, NoCache: !ownCache, Report: s.report, MaxEvents: 1 << 18, MaxMarks: 5,
		FindUnreachable: lost == 1, FreeUnreachable: lost == 2, Sections: tracker.SectionConfig{Host: "none"},
		Logger: slog.New(handler{slog.DiscardHandler, func() { w.callback(s) }}),
		Clock: func() time.Time {
			w.callback(s)
			return start.Add(time.Duration(s.ticks.Add(1)) * time.Microsecond)
		},
	}
	if w.turns {
		s.config.MaxEvents = 400
	}
	if from.cache != nil {
		s.config.Device = from.cache
	}
	var err error
	s.tr, err = tracker.New(s.config)
	require.NoError(w.t, err)
	return s
}

// handler is a Logger's that calls back.
type handler struct {
	slog.Handler
	called func()
}

func (h handler) Enabled(context.Context, slog.Level) bool { h.called(); return false }

// track makes a mark, for the check.
func (s *subject) track() {
	m := s.tr.Track()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks[m.Seq] = m
}

// outOfMemory counts what the history must tell.
func (s *subject) outOfMemory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ooms++
}

// hasSeen reports whether there are enough snapshots till the next check.
func (s *subject) hasSeen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.looks) > 20
}

// look takes a snapshot, for the check. To compare call sites takes long: not all do.
func (s *subject) look(light, sites bool) *snapshot.Snapshot {
	take := s.tr.Snapshot
	if light {
		take = s.tr.LightSnapshot
	}
	now := take()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, look{now, light, sites})
	return now
}

// close closes the tracker, which may be in use.
func (s *subject) close() {
	s.closing.Store(true)
	s.frees.Add(1)
	err := s.tr.Close()
	s.report.mu.Lock()
	defer s.report.mu.Unlock()
	if !s.world.device.failing.Load() {
		assert.Equal(s.world.t, s.report.broken, err != nil, "%v", err)
	}
	assert.ErrorIs(s.world.t, s.tr.Close(), alloc.ErrClosed)
}

// waitCollected waits until the Go collector has found what was lost, and what is to be freed
// of it is.
func (s *subject) waitCollected() {
	if len(s.lost) == 0 || s.closing.Load() && !s.config.FreeUnreachable {
		return
	}
	for deadline := time.Now().Add(time.Minute); !s.collected(); time.Sleep(time.Millisecond) {
		require.True(s.world.t, time.Now().Before(deadline), "unreachable buffers: %d, found: %d", s.everLost, s.replay.lost)
		runtime.GC()
	}
}

func (s *subject) collected() bool {
	var gone, left []*record
	if s.closing.Load() {
		gone, left = s.foundAfterClose()
	} else {
		s.catchUp()
		if s.replay.lost != s.everLost {
			return false
		}
		gone, left = s.found()
	}
	before := s.lost
	s.lost = left
	for _, r := range gone {
		if s.pool.has(r.want.Ptr) && !s.world.holds(s.pool, r.want.Ptr) { // in the midst of its free
			s.lost = before
			return false
		}
	}
	for _, r := range gone {
		s.pool.gave(r.want.Requested)
	}
	return true
}

// found returns what of the lost was freed, and what is still live.
func (s *subject) found() (gone, left []*record) {
	claimed := make(map[alloc.Ptr]bool)
	for _, r := range slices.Backward(s.lost) { // the latest has the address
		e := s.replay.live[r.want.Ptr]
		if e == nil || !e.lost || claimed[r.want.Ptr] || s.config.FreeUnreachable && !e.freeFailed {
			gone = append(gone, r)
			continue
		}
		claimed[r.want.Ptr], r.want.Unreachable = true, true
		left = append(left, r)
	}
	return gone, left
}

// foundAfterClose is found for a closed tracker, which has no history. It asks a driver once: what
// the driver refused to free stays. A cache takes everything back.
func (s *subject) foundAfterClose() (gone, left []*record) {
	for _, r := range s.lost {
		if s.pool.cache == nil && s.world.device.isUnfreed(r.want.Ptr) {
			left = append(left, r)
		} else {
			gone = append(gone, r)
		}
	}
	return gone, left
}

// catchUp replays what has happened since, and compares what was seen meanwhile.
func (s *subject) catchUp() {
	events := slices.Collect(s.tr.Dump().Events())
	s.mu.Lock()
	looks := s.looks
	s.looks = nil
	s.mu.Unlock()
	slices.SortStableFunc(looks, func(x, y look) int { return cmp.Compare(x.Events, y.Events) })
	seen := func(upTo uint64) {
		for len(looks) > 0 && looks[0].Events <= upTo {
			s.replay.compare(looks[0])
			s.compareTwins(looks[0])
			looks = looks[1:]
		}
	}
	if len(events) > 0 {
		require.LessOrEqual(s.world.t, events[0].Seq, s.replay.next, "the history has all events of a round")
	}
	for _, e := range events {
		if e.Seq >= s.replay.next {
			seen(e.Seq)
			s.replay.apply(e, s)
		}
	}
	seen(s.replay.next)
	assert.Empty(s.world.t, looks, "they saw what the history does not tell")
	assert.LessOrEqual(s.world.t, len(events), s.config.MaxEvents)
}

// compareTwins checks that labels are of the snapshot's instant too: of two buffers that
// are named alike one after the other, the first may be one name ahead.
func (s *subject) compareTwins(seen look) {
	names := make(map[alloc.Ptr]int)
	for _, w := range s.world.workers {
		for _, r := range w.twins {
			names[r.want.Ptr] = 0
		}
	}
	if seen.light || len(names) == 0 {
		return
	}
	for a := range seen.Allocations() {
		if _, twin := names[a.Ptr]; twin {
			names[a.Ptr], _ = strconv.Atoi(a.Label)
		}
	}
	for _, w := range s.world.workers {
		if len(w.twins) > 0 && w.twins[0].in == s {
			ahead := names[w.twins[0].want.Ptr] - names[w.twins[1].want.Ptr]
			require.Contains(s.world.t, []int{0, 1}, ahead, "labels of one instant")
		}
	}
}

// marked compares a mark with the ledger at its event.
func (s *subject) marked(e snapshot.Event) {
	t, r := s.world.t, &s.replay
	m := s.marks[e.Mark]
	require.NotNil(t, m, "mark %d was returned", e.Mark)
	delete(s.marks, e.Mark)
	require.Equal(t, e.Time, m.Time)
	require.Equal(t, caller(e.Stack), m.CallSite)
	require.Equal(t, r.level, m.Live)
	require.Equal(t, r.allocated, m.Allocated)
	require.Equal(t, r.registered, m.Registered)
	require.Equal(t, r.byMemory(), m.Memory)
	for _, c := range m.Delta {
		sum := mem.Tally{}
		for _, x := range c.CallSites {
			sum = sum.Add(x.Tally)
		}
		count(s.deltas, site{kind: c.Kind, dtype: c.DType, shape: c.Shape.String(), memory: c.Memory}, c.Tally)
		require.Equal(t, c.Tally, sum)
	}
	same(t, r.by(site.group), s.deltas, "the deltas of all marks come to the live table")
	s.blocks = append(s.blocks, m.Delta.String())
}

// check compares the tracker with what is held of it, and with its history. Nobody uses
// it meanwhile.
func (s *subject) check(held map[alloc.Ptr]*record, thorough bool) {
	if s.closing.Load() {
		s.checkClosed()
		return
	}
	now := s.look(false, thorough)
	s.catchUp()
	t := s.world.t
	for a := range now.Allocations() {
		r := held[a.Ptr]
		require.NotNil(t, r, "no worker holds %v", a)
		want := r.want
		want.Seq, want.Time, want.Stack, want.CallSite = a.Seq, a.Time, a.Stack, a.CallSite
		require.Equal(t, want, a)
	}
	require.EqualValues(t, len(held), now.Live.Count+now.Host().Count, "live buffers")
	s.checkLevels(now.Levels)
	s.checkReport()
	require.Equal(t, s.ooms, s.replay.ooms)
	s.checkSections()
	if thorough {
		s.checkReaders(now)
	}
}

func (s *subject) checkLevels(now snapshot.Levels) {
	t := s.world.t
	require.LessOrEqual(t, now.Allocated-now.Registered, now.Reserved)
	info, err := s.world.device.Device.MemInfo()
	require.NoError(t, err)
	if !s.world.rogue {
		require.Equal(t, info.Used(), now.DriverUsed)
		require.Equal(t, info.Total, now.DriverTotal)
		require.LessOrEqual(t, now.Reserved, now.DriverUsed)
	}
	s.world.device.set(memInfoFails)
	unknown := s.tr.LightSnapshot()
	s.world.device.heal()
	require.Equal(t, []alloc.Bytes{-1, -1, -1}, []alloc.Bytes{unknown.DriverUsed, unknown.DriverTotal, unknown.Untracked()}, "what is not known")
}

// checkReport compares the report's blocks with the marks.
func (s *subject) checkReport() {
	r, t := s.report, s.world.t
	if !s.world.nosy { // a Write that calls Track leaves its block to others
		require.Len(t, s.blocks, len(r.blocks)+r.failed, "a block for each mark")
	}
	if r.failed == 0 && !s.world.nosy {
		for i, block := range r.blocks {
			require.Contains(t, block, s.blocks[i])
		}
	}
	require.Equal(t, r.broken, s.tr.Err() != nil)
	s.blocks, r.blocks, r.failed = nil, nil, 0
}

// checkSections compares the sections that ended, adds them up, and compares the open ones.
func (s *subject) checkSections() {
	for _, x := range s.finished {
		x.compare(s.world.t, 0)
		row := s.rows[x.path]
		row.Calls++
		row.Allocated, row.Freed = row.Allocated.Add(x.allocated), row.Freed.Add(x.freed)
		row.Peak, row.SelfPeak = max(row.Peak, x.gpu.Peak), max(row.SelfPeak, x.Data().SelfPeak)
		s.rows[x.path] = row
	}
	s.finished = nil
}

// checkReaders compares what else can be read.
func (s *subject) checkReaders(now *snapshot.Snapshot) {
	t := s.world.t
	for _, x := range s.open {
		x.compare(t, s.replay.level.Bytes)
	}
	if s.owns {
		segments := make(map[alloc.Ptr]alloc.Bytes)
		for x := range s.pool.cache.Segments() {
			segments[x.Ptr] = x.Size
		}
		same(t, segments, s.replay.segments, "segments, by the history")
		require.Equal(t, now.Cache.Retries, s.replay.retries)
	}

	var leaked mem.Tally
	for _, l := range s.tr.Leaks() {
		leaked = leaked.Add(l.Tally)
	}
	require.Equal(t, now.Live.Add(now.Host()), leaked)

	rows := maps.Clone(s.rows)
	for _, got := range s.tr.Profile() {
		want := rows[got.Path]
		delete(rows, got.Path)
		for at, n := range s.replay.sites {
			if at.memory.OnHost() {
				continue
			}
			if at.section == got.Path || strings.HasPrefix(at.section, got.Path+"/") {
				want.Live = want.Live.Add(n)
			}
		}
		require.Equal(t, want, sections.Row{
			Measured: sections.Measured{Allocated: got.Allocated, Freed: got.Freed, SelfPeak: got.SelfPeak},
			Calls:    got.Calls, Peak: got.Peak, Live: got.Live,
		}, got.Path)
	}
	require.Empty(t, rows, "sections that ended and are in no profile")

	marks := s.tr.Dump().Marks
	require.LessOrEqual(t, len(marks), s.config.MaxMarks)
}

// checkJSON writes a snapshot and reads it again, with texts that must be escaped.
func (s *subject) checkJSON() {
	t, now := s.world.t, s.tr.Snapshot()
	text, err := now.MarshalJSON()
	require.NoError(t, err)
	require.True(t, utf8.Valid(text))
	read, err := snapshot.Read(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, now.Live, read.Live)
	require.Equal(t, now.String(), read.String())
}

// checkClosed: a closed tracker knows nothing, and keeps nothing.
func (s *subject) checkClosed() {
	t, now := s.world.t, s.tr.Snapshot()
	RequireExact(t, now)
	require.Zero(t, now.Live)
	require.Empty(t, slices.Collect(s.tr.Dump().Events()))
	require.Empty(t, s.tr.Dump().Marks)
	require.Empty(t, s.tr.Leaks())
	require.Empty(t, s.tr.Profile())
	for _, x := range s.looks { // before it was closed
		if !x.light {
			RequireExact(t, x.Snapshot)
		}
	}
	s.looks, s.finished = nil, nil
	// What the driver refuses stays until the next Free.
	refused, freed := s.world.device.refused, s.frees.Swap(0) > 0
	if s.refused < refused || freed {
		s.givenBack = s.refused == refused
	}
	s.refused = refused
	if s.owns && s.givenBack {
		for x := range s.pool.cache.Segments() {
			require.True(t, slices.ContainsFunc(x.Blocks, func(b alloc.Block) bool { return b.State == alloc.Allocated }),
				"free memory goes back to the driver")
		}
	}
}
