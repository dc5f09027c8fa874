package tracker_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

const kvCache tracker.Kind = "KVCache"

// byKind adds up what history tells of live buffers.
func byKind(tr *tracker.MemTracker) map[tracker.Kind]mem.Tally {
	sums := make(map[tracker.Kind]mem.Tally)
	for e := range tr.Dump().Events() {
		n := int64(0)
		switch e.Action {
		case mem.Allocated, mem.Registered:
			n = 1
		case mem.Freed, mem.Unregistered:
			n = -1
		}
		sum := sums[e.Kind].Add(mem.Tally{Count: n, Bytes: alloc.Bytes(n) * e.Requested})
		if sums[e.Kind] = sum; sum.IsZero() {
			delete(sums, e.Kind)
		}
	}
	return sums
}

func TestSetKind(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	x, err := tracker.Make[float32](tr, alloc.Shape{8}, tracker.Unspecified)
	require.NoError(t, err)
	y := take(t, tr, tracker.Parameter, 8)
	require.NoError(t, tr.Register(1<<45, alloc.DeviceMemory, alloc.Shape{4}, alloc.Float32, tracker.Unspecified))
	tr.Track()
	x.SetLabel("keys")
	before := tr.Snapshot()
	seq := slices.Collect(before.Allocations())[0].Seq

	require.NoError(t, x.SetKind(kvCache))
	require.NoError(t, x.SetKind(kvCache))
	require.NoError(t, tr.SetKind(1<<45, tracker.Input))
	assert.Equal(t, kvCache, x.Allocation().Kind)
	assert.Contains(t, x.String(), "KVCache")

	s := tr.Snapshot()
	groups := make(map[tracker.Kind]mem.Tally)
	for _, g := range s.Sub(nil) {
		groups[g.Kind] = g.Tally
	}
	want := map[tracker.Kind]mem.Tally{
		kvCache: {Count: 1, Bytes: 32}, tracker.Parameter: {Count: 1, Bytes: 32}, tracker.Input: {Count: 1, Bytes: 16},
	}
	assert.Equal(t, want, groups)
	assert.Equal(t, want, byKind(tr), "the history says the same")
	assert.Equal(t, before.Live, s.Live)
	assert.Equal(t, before.Peak, s.Peak)
	assert.Equal(t, before.Total, s.Total)
	assert.Equal(t, before.Allocated, s.Allocated)
	for a := range s.Allocations() {
		if a.Ptr == x.Ptr() {
			assert.Equal(t, seq, a.Seq, "it is as old as it was")
			assert.Equal(t, "keys", a.Label)
		}
	}
	atPeak := make(map[tracker.Kind]int64)
	for site := range s.CallSites() {
		atPeak[site.Kind] += site.Peak.Count
		assert.LessOrEqual(t, site.Live.Count, site.Total.Count)
	}
	assert.Equal(t, map[tracker.Kind]int64{tracker.Unspecified: 2, tracker.Parameter: 1, kvCache: 0, tracker.Input: 0}, atPeak, "the peak was before")
	d := tr.Track().Delta
	assert.True(t, d.Sum().IsZero())
	assert.Len(t, d, 4, "two kinds more, two less")

	require.ErrorContains(t, x.SetKind("Tensor"), "write tracker.Unspecified")
	require.ErrorIs(t, tr.SetKind(5, tracker.Input), alloc.ErrUnknownPtr)
	require.NoError(t, x.Free())
	require.ErrorIs(t, x.SetKind(tracker.Input), alloc.ErrUnknownPtr)
	require.NoError(t, y.Free())
	unregister(t, tr, 1<<45)
	assert.Empty(t, byKind(tr))
	assert.Zero(t, tr.Snapshot().Live)
	z := take(t, tr, tracker.Input, 1)
	require.NoError(t, tr.Close())
	require.ErrorIs(t, z.SetKind(kvCache), alloc.ErrClosed)
	require.NoError(t, z.Free())
}
