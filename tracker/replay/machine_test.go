package replay_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// TestARetryEmptiesAllStreams: as in PyTorch, a request that the driver refused takes back what every stream's pool holds, in a
// replay without a limit too, where the driver refuses nothing.
func TestARetryEmptiesAllStreams(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 3)
	lists := p.from(0, []tables.EventEntry{
		{Action: mem.Allocated, Ptr: 1 << 30, Allocated: 20 * alloc.MiB, Tensor: p.tensor(20 * alloc.MiB), Stream: 0},
		{Action: mem.Freed, Ptr: 1 << 30, Allocated: 20 * alloc.MiB, Tensor: p.tensor(20 * alloc.MiB), Stream: 0},
		{Action: mem.Allocated, Ptr: 2 << 30, Allocated: 20 * alloc.MiB, Tensor: p.tensor(20 * alloc.MiB), Stream: 1},
		{Action: mem.Freed, Ptr: 2 << 30, Allocated: 20 * alloc.MiB, Tensor: p.tensor(20 * alloc.MiB), Stream: 1},
		{Action: mem.SegmentFreed, Ptr: 1 << 30, Allocated: 20 * alloc.MiB, Stack: p.stack},
		{Action: mem.SegmentAllocated, Ptr: 3 << 30, Allocated: 40 * alloc.MiB, Stack: p.stack},
		{Action: mem.Allocated, Ptr: 3 << 30, Allocated: 40 * alloc.MiB, Tensor: p.tensor(40 * alloc.MiB), Stream: 2},
		{Action: mem.Freed, Ptr: 3 << 30, Allocated: 40 * alloc.MiB, Tensor: p.tensor(40 * alloc.MiB), Stream: 2},
	})
	r := p.dump(0)
	r.History, r.Snapshot.Events = lists, 8
	got := ran(t, r, replay.Config{})
	assert.EqualValues(t, 1, got.Recorded.Retries)
	assert.EqualValues(t, 2, got.DriverFrees)
	assert.Equal(t, 40*alloc.MiB, got.PeakReserved)
}

// TestEmptyingOftenIsNoHostileHistory, if little is live when the program does it.
func TestEmptyingOftenIsNoHostileHistory(t *testing.T) {
	const times = 30_000
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	for range times {
		p.add(p.event(mem.Allocated, a, 20*m))
		p.add(p.event(mem.Freed, a, 20*m))
		p.add(tables.EventEntry{Action: mem.SegmentFreed, Ptr: a, Allocated: 20 * m})
	}
	got := ran(t, p.dump(0), replay.Config{})
	assert.EqualValues(t, times, got.DriverAllocs)
}

// TestEndlessFromTheBeginning: what was live before the first event costs as much at each emptied cache as what came later. The
// error names the event, by its number in the program.
func TestEndlessFromTheBeginning(t *testing.T) {
	const buffers, first = 20_000, 1_000_000
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	for i := range buffers {
		p.live = append(p.live, held{a + alloc.Ptr(i)<<25, 20 * m, 20 * m, 0, i, p.stack})
	}
	var events []tables.EventEntry
	for range 10_000 {
		events = append(events, p.event(mem.Allocated, 1<<20, 20*m), p.event(mem.Freed, 1<<20, 20*m), tables.EventEntry{Action: mem.SegmentFreed, Ptr: 1 << 20, Allocated: 20 * m})
	}
	r := p.dump(0)
	for _, b := range p.live {
		r.Snapshot.Segments = append(r.Snapshot.Segments, alloc.Segment{
			Ptr: b.ptr, Size: 20 * m, Pool: "large", Blocks: []alloc.Block{{Ptr: b.ptr, Size: 20 * m, Requested: 20 * m, State: alloc.Allocated}},
		})
	}
	r.History, r.Snapshot.Events = p.from(first, events), first+uint64(len(events))
	_, err := replay.Run(r, replay.Config{})
	require.ErrorContains(t, err, "emptied over and over")
	assert.Regexp(t, `^replay: event 10\d{5}: `, err.Error())
}

// TestABeginningThatTheAllocatorCannotHave: the recorded segments are none that it makes, so the buffers are packed, and the rest of
// the history is replayed all the same.
func TestABeginningThatTheAllocatorCannotHave(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.live = []held{{a, 512, 512, 0, 0, p.stack}}
	r := p.dump(0)
	r.History, r.Snapshot.Events = p.from(1, []tables.EventEntry{p.event(mem.Allocated, b, 20*m)}), 2
	p.live = append(p.live, held{b, 20 * m, 20 * m, 0, 1, p.stack})
	r.Snapshot = p.snapshot(2)
	r.Snapshot.Segments = []alloc.Segment{
		{Ptr: a, Size: 3 * m, Pool: "small", Blocks: []alloc.Block{{Ptr: a, Size: 512, Requested: 512, State: alloc.Allocated}, {Ptr: a + 512, Size: 3*m - 512, State: alloc.Inactive}}},
		{Ptr: b, Size: 20 * m, Pool: "large", Blocks: []alloc.Block{{Ptr: b, Size: 20 * m, Requested: 20 * m, State: alloc.Allocated}}},
	}
	r.Snapshot.Reserved = 23 * m
	got := ran(t, r, replay.Config{})
	assert.Equal(t, "packed", got.Layout())
	assert.True(t, got.Fits)
	assert.Equal(t, 20*m+512, got.PeakRequested)
	assert.Equal(t, 22*m, got.PeakReserved, "a small segment of 2 MiB, and a large one")
}

// TestABeginningThatJustFits: segments with buffers, memory of others beside them and, if there is room, the free segments too.
func TestABeginningThatJustFits(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.add(p.event(mem.Registered, 1<<20, 30*m))
	p.alloc(20 * m)
	p.alloc(40 * m)
	p.free(1)
	first := len(p.events)
	p.alloc(40 * m)
	r := p.dump(first)
	lists := *tables.Of(&r.Snapshot.Tables)
	lists.Allocations = append([]tables.AllocationEntry{{Site: int32(len(lists.Sites)), Ptr: 1 << 20, Allocated: 30 * m, Foreign: true}}, lists.Allocations...)
	lists.Sites = append(lists.Sites, tables.SiteEntry{Tensor: p.tensor(30 * m), Live: 1, Total: 1})
	r.Snapshot.Tables = tables.Wrap(lists)
	r.Snapshot.Registered = 30 * m
	for memory, calls := range map[alloc.Bytes]int64{90 * m: 0, 90*m - 1: -1, 50 * m: -1} {
		got := ran(t, r, replay.Config{Memory: memory})
		assert.Equal(t, "as recorded", got.Layout())
		assert.Equal(t, calls >= 0, got.Fits, memory)
		if got.Fits {
			assert.Equal(t, calls, got.DriverAllocs, "the free segment is there")
		} else {
			assert.False(t, got.OOM().Beginning, "what was live fits")
		}
	}
	got := ran(t, r, replay.Config{Memory: 50*m - 1})
	require.NotNil(t, got.OOM())
	assert.True(t, got.OOM().Beginning)
	assert.Equal(t, 50*m, got.OOM().Requested)
	assert.Contains(t, got.String(), "out of memory at the beginning: what was live before the first event needs 50.0 MiB, and 50.0 MiB is available")
}

// TestSmallestOfALongRange: a range of a terabyte is searched in steps of 4 MiB, so that 20 replays are enough.
func TestSmallestOfALongRange(t *testing.T) {
	const tib = alloc.TiB
	r := history(t, 0, of(mem.Allocated, a, tib), of(mem.Freed, a, tib), of(mem.Allocated, a, 3*tib/2), of(mem.Freed, a, 3*tib/2))
	got, err := replay.Smallest(r, replay.Config{})
	require.NoError(t, err)
	assert.True(t, got.Fits)
	assert.Equal(t, 3*tib/2, got.Memory)
	assert.LessOrEqual(t, got.Replays(), 20)
	assert.Greater(t, got.Replays(), 10, "it halves the range each time")
}
