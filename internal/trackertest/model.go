package trackertest

import (
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/alloctest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

const modelEvents = 16

// Model runs random sequences of Alloc, Free, Register, Unregister, Track,
// ClearCache and failures, and after every step compares the tracker with a
// naive map.
func Model(t *testing.T, open func(t *testing.T) Rig) {
	rapid.Check(t, func(rt *rapid.T) {
		rig := open(t)
		m := &model{rig: rig, live: make(map[alloc.Ptr]record)}
		m.tr = newTracker(rt, rig, rapid.Bool().Draw(rt, "no cache"), modelEvents)
		rt.Repeat(map[string]func(*rapid.T){
			"alloc":      m.alloc,
			"allocFails": m.allocFails,
			"free":       m.free,
			"freeFails":  m.freeFails,
			"freeTwice":  m.freeTwice,
			"register":   m.register,
			"unregister": m.unregister,
			"track":      m.track,
			"clearCache": m.clearCache,
			"resetPeak":  m.resetPeak,
			"":           m.check,
		})
		m.close(rt)
	})
}

// newTracker returns a tracker without a report.
func newTracker(t require.TestingT, rig Rig, noCache bool, events int) *tracker.MemTracker {
	tr, err := tracker.New(tracker.Config{Device: rig.Device, NoCache: noCache, Report: io.Discard, MaxEvents: events})
	require.NoError(t, err)
	return tr
}

// model is what the tracker should know.
type model struct {
	rig   Rig
	tr    *tracker.MemTracker
	live  map[alloc.Ptr]record
	past  []*tracker.Buffer // freed
	peak  tracker.Tally
	total tracker.Tally
	sum   tracker.Delta // of all marks
}

// record is a live buffer; buf is nil if it is registered.
type record struct {
	kind  tracker.Kind
	dtype alloc.DType
	shape alloc.Shape
	bytes alloc.Bytes
	buf   *tracker.Buffer
}

func (m *model) add(p alloc.Ptr, r record) {
	m.live[p] = r
	m.total = m.total.Add(tracker.Tally{Count: 1, Bytes: r.bytes})
	if now := m.level(); now.Bytes > m.peak.Bytes {
		m.peak = now
	}
}

func (m *model) level() tracker.Tally {
	var sum tracker.Tally
	for _, r := range m.live {
		sum = sum.Add(tracker.Tally{Count: 1, Bytes: r.bytes})
	}
	return sum
}

// pick draws one of the live records, ours or the registered.
func (m *model) pick(t *rapid.T, registered bool) (alloc.Ptr, record) {
	ptrs := slices.Sorted(maps.Keys(m.live))
	ptrs = slices.DeleteFunc(ptrs, func(p alloc.Ptr) bool { return (m.live[p].buf == nil) != registered })
	if len(ptrs) == 0 {
		t.Skip("nothing to free")
	}
	p := rapid.SampledFrom(ptrs).Draw(t, "address")
	return p, m.live[p]
}

func draw(t *rapid.T) record {
	r := record{
		kind:  rapid.SampledFrom(tracker.Kinds()).Draw(t, "kind"),
		dtype: rapid.SampledFrom([]alloc.DType{alloc.Float32, alloc.BFloat16, alloc.Int4}).Draw(t, "dtype"),
		shape: rapid.SampledFrom([]alloc.Shape{{}, {0}, {7}, {64, 3, 3, 3}, {512, 512}, {1 << 21}, {3, 1 << 22}}).Draw(t, "shape"),
	}
	r.bytes, _ = r.shape.Bytes(r.dtype)
	return r
}

func (m *model) alloc(t *rapid.T) {
	r := draw(t)
	buf, err := m.tr.Alloc(r.shape, r.dtype, r.kind)
	if errors.Is(err, alloc.ErrOutOfMemory) {
		t.Skip("the device is full")
	}
	require.NoError(t, err)
	require.Equal(t, r.shape, buf.Shape())
	require.Equal(t, r.bytes, buf.Bytes())
	require.GreaterOrEqual(t, buf.Allocated(), buf.Bytes())
	r.buf = buf
	m.add(buf.Ptr(), r)
}

// allocFails asks for what cannot be had. A failure of the driver may go
// unnoticed by a request that the cache serves.
func (m *model) allocFails(t *rapid.T) {
	for _, shape := range []alloc.Shape{{-1}, {math.MaxInt, math.MaxInt, 4}, {1 << 30, 1 << 30}} {
		_, err := m.tr.Alloc(shape, alloc.Float32, tracker.Activation)
		require.Error(t, err)
	}
	if m.rig.FailAlloc == nil {
		return
	}
	m.rig.FailAlloc()
	r := draw(t)
	buf, err := m.tr.Alloc(r.shape, r.dtype, r.kind)
	m.heal()
	if err == nil {
		r.buf = buf
		m.add(buf.Ptr(), r)
	}
}

func (m *model) free(t *rapid.T) {
	p, r := m.pick(t, false)
	require.NoError(t, r.buf.Free())
	delete(m.live, p)
	m.past = append(m.past, r.buf)
}

// freeFails: with a cache a Free does not reach the driver, and so succeeds.
func (m *model) freeFails(t *rapid.T) {
	if m.rig.FailFree == nil {
		t.Skip("the device cannot be made to fail")
	}
	p, r := m.pick(t, false)
	m.rig.FailFree()
	err := r.buf.Free()
	m.heal()
	if err == nil {
		delete(m.live, p)
		m.past = append(m.past, r.buf)
	}
}

func (m *model) freeTwice(t *rapid.T) {
	if len(m.past) == 0 {
		t.Skip("nothing was freed")
	}
	buf := rapid.SampledFrom(m.past).Draw(t, "freed")
	require.ErrorIs(t, buf.Free(), alloc.ErrDoubleFree)
}

// register brings in memory that other code took from the device.
func (m *model) register(t *rapid.T) {
	r := draw(t)
	p, err := m.rig.Device.Alloc(r.bytes)
	if err != nil {
		t.Skip("the device is full")
	}
	require.NoError(t, m.tr.Register(p, r.shape, r.dtype, r.kind))
	require.ErrorIs(t, m.tr.Register(p, r.shape, r.dtype, r.kind), tracker.ErrDuplicatePtr)
	m.add(p, r)
}

func (m *model) unregister(t *rapid.T) {
	p, _ := m.pick(t, true)
	if rapid.Bool().Draw(t, "the free fails") {
		failure := errors.New("refused")
		require.ErrorIs(t, m.tr.Release(p, func() error { return failure }), failure)
		return
	}
	require.NoError(t, m.tr.Release(p, func() error { return m.rig.Device.Free(p) }))
	require.ErrorIs(t, m.tr.Unregister(p), alloc.ErrUnknownPtr)
	delete(m.live, p)
}

// track checks that the deltas of all marks add up to the live table.
func (m *model) track(t *rapid.T) {
	mark := m.tr.Track()
	m.sum = m.sum.Add(mark.Delta)
	require.Equal(t, m.level(), mark.Live)
	require.Equal(t, m.tr.Snapshot().Sub(nil), m.sum)
}

func (m *model) clearCache(t *rapid.T) {
	if m.rig.FailFree != nil && rapid.Bool().Draw(t, "a free fails") {
		m.rig.FailFree()
	}
	before := m.tr.Snapshot()
	returned, _ := m.tr.ClearCache()
	m.heal()
	require.Equal(t, before.Reserved-returned, m.tr.Snapshot().Reserved)
}

func (m *model) resetPeak(*rapid.T) {
	m.tr.ResetPeak()
	m.peak = m.level()
}

func (m *model) heal() {
	if m.rig.Heal != nil {
		m.rig.Heal()
	}
}

// check compares everything.
func (m *model) check(t *rapid.T) {
	s := m.tr.Snapshot()
	RequireExact(t, s)
	require.Equal(t, m.level(), s.Live)
	require.Equal(t, m.peak, s.Peak)
	require.Equal(t, m.total, s.Total)
	seen := 0
	for a := range s.Allocations() {
		r, ok := m.live[a.Ptr]
		require.True(t, ok, "%v is not live", a.Ptr)
		require.Equal(t, r.kind, a.Kind)
		require.Equal(t, r.dtype, a.DType)
		require.Equal(t, r.shape, a.Shape)
		require.Equal(t, r.buf == nil, a.Registered)
		seen++
	}
	require.Len(t, m.live, seen)
	require.LessOrEqual(t, s.Allocated-s.Registered, s.Reserved)
	require.LessOrEqual(t, s.Reserved, s.DriverUsed)
	require.LessOrEqual(t, m.tr.History().Len(), modelEvents)
	if cache, ok := m.tr.Device().(*alloc.Cache); ok {
		alloctest.Invariants(t, cache)
	}
}

// close frees what is left and closes the tracker: nothing of it stays.
func (m *model) close(t *rapid.T) {
	for p, r := range m.live {
		if r.buf == nil {
			require.NoError(t, m.tr.Release(p, func() error { return m.rig.Device.Free(p) }))
		} else {
			require.NoError(t, r.buf.Free())
		}
	}
	require.True(t, m.tr.Snapshot().Live.IsZero())
	require.NoError(t, m.tr.Close())
	require.Zero(t, m.tr.History().Len())
	require.ErrorIs(t, m.tr.Close(), alloc.ErrClosed)
}
