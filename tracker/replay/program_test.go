package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// event is about a buffer of a size at an address.
func (p *program) event(action mem.Action, at alloc.Ptr, n alloc.Bytes) tables.EventEntry {
	return tables.EventEntry{Action: action, Ptr: at, Allocated: n, Tensor: p.tensor(n), Stack: p.stack}
}

// history is a dump of events at whose end nothing is live, from the event first on.
func history(t *testing.T, first int, events ...func(*program) tables.EventEntry) *snapshot.Dump {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	for _, e := range events {
		p.add(e(p))
	}
	r := &snapshot.Dump{Snapshot: p.snapshot(first + len(p.events)), History: p.from(first, p.events)}
	return r
}

func of(action mem.Action, at alloc.Ptr, n alloc.Bytes) func(*program) tables.EventEntry {
	return func(p *program) tables.EventEntry { return p.event(action, at, n) }
}

const (
	a = alloc.Ptr(1 << 30)
	b = alloc.Ptr(2 << 30)
	m = alloc.MiB
)

// TestAFreeThatIsMissing: two allocations at one address cannot both be live. The gap names the event at which that shows, by
// its number in the program and not in the part that is left, and the recorded levels count one of the two.
func TestAFreeThatIsMissing(t *testing.T) {
	got := ran(t, history(t, 1000,
		of(mem.Allocated, a, 20*m), of(mem.Allocated, b, 8*m), of(mem.Allocated, a, 20*m), of(mem.Freed, a, 20*m), of(mem.Freed, b, 8*m)), replay.Config{})
	require.NotNil(t, got.Gap())
	assert.EqualValues(t, 1002, got.Gap().Event)
	assert.EqualValues(t, 1, got.Gap().Buffers)
	assert.Equal(t, 20*m, got.Gap().Bytes)
	assert.Equal(t, 28*m, got.Recorded.PeakRequested)
	assert.Equal(t, 28*m, got.Recorded.PeakAllocated)
	assert.NotContains(t, got.String(), "events are missing")
}

// TestFreesThatAreMissing: each buffer without a free counts once, whether another took its address or the history ended.
func TestFreesThatAreMissing(t *testing.T) {
	got := ran(t, history(t, 1000, of(mem.Allocated, a, 20*m), of(mem.Allocated, b, 8*m), of(mem.Allocated, a, 10*m), of(mem.Freed, b, 8*m)), replay.Config{})
	require.NotNil(t, got.Gap())
	assert.EqualValues(t, 2, got.Gap().Buffers)
	assert.Equal(t, 30*m, got.Gap().Bytes)
}

// TestTheLeastThatATornHistoryNeeded may be what there was at its beginning.
func TestTheLeastThatATornHistoryNeeded(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * m)
	first := len(p.events)
	p.free(0)
	for _, action := range []mem.Action{mem.Allocated, mem.Allocated, mem.Freed} {
		p.add(p.event(action, b, 8*m))
	}
	got := ran(t, p.dump(first), replay.Config{})
	require.NotNil(t, got.Gap())
	assert.Equal(t, 20*m, got.Gap().LeastRequested)
	assert.Equal(t, 20*m, got.Gap().LeastAllocated)
}

// TestAFailureIsNumberedInTheProgram, whose first events the history does not have.
func TestAFailureIsNumberedInTheProgram(t *testing.T) {
	got := ran(t, history(t, 1000, of(mem.Allocated, a, 20*m), of(mem.Freed, a, 20*m), of(mem.Allocated, b, 40*m), of(mem.Freed, b, 40*m)), replay.Config{Memory: 30 * m})
	require.NotNil(t, got.OOM())
	assert.EqualValues(t, 1002, got.OOM().Event)
	assert.Equal(t, 40*m, got.OOM().Requested)
	assert.Equal(t, "main.step", got.OOM().CallSite.Function)
}

// TestMemoryOfOthersThatWasThereBefore: only its unregistering is in the history. It never was in a block.
func TestMemoryOfOthersThatWasThereBefore(t *testing.T) {
	got := ran(t, history(t, 5, of(mem.Allocated, b, 20*m), of(mem.Unregistered, a, 30*m), of(mem.Freed, b, 20*m)), replay.Config{})
	assert.Equal(t, 50*m, got.PeakRequested)
	assert.Equal(t, 20*m, got.PeakAllocated)
	assert.Equal(t, 20*m, got.PeakReserved)
}

// TestMemoryOfOthersMayFillTheDevice, to its last byte.
func TestMemoryOfOthersMayFillTheDevice(t *testing.T) {
	r := history(t, 0, of(mem.Allocated, b, 20*m), of(mem.Registered, a, 30*m), of(mem.Unregistered, a, 30*m), of(mem.Registered, a, 30*m), of(mem.Unregistered, a, 30*m), of(mem.Freed, b, 20*m))
	assert.True(t, ran(t, r, replay.Config{Memory: 50 * m}).Fits)
	assert.False(t, ran(t, r, replay.Config{Memory: 50*m - 1}).Fits)
	smallest, err := replay.Smallest(r, replay.Config{Allocator: "driver"})
	require.NoError(t, err)
	assert.Equal(t, 50*m, smallest.Memory)
}

// TestAFailureOfAnEarlierFree: between a free and the event that it failed, another goroutine may have freed something. The
// first buffer lives on, the other does not.
func TestAFailureOfAnEarlierFree(t *testing.T) {
	got := ran(t, history(t, 0,
		of(mem.Allocated, a, 20*m), of(mem.Allocated, b, 30*m), of(mem.Freed, a, 20*m), of(mem.Freed, b, 30*m), of(mem.FreeFailed, a, 20*m),
		of(mem.Allocated, b, 30*m), of(mem.Freed, b, 30*m), of(mem.Freed, a, 20*m)), replay.Config{})
	assert.Nil(t, got.Gap())
	assert.Equal(t, 50*m, got.PeakRequested)
	assert.Equal(t, 50*m, got.Recorded.PeakRequested)
}

// TestAFailedRequestTakesNothing: with more memory it is served, and the program did not have it.
func TestAFailedRequestTakesNothing(t *testing.T) {
	for _, allocator := range replay.Allocators() {
		got := ran(t, history(t, 0, of(mem.OutOfMemory, 0, 100*m), of(mem.Allocated, a, 60*m), of(mem.OutOfMemory, 0, 40*m), of(mem.Freed, a, 60*m)), replay.Config{Allocator: allocator})
		assert.True(t, got.Fits)
		assert.Equal(t, 100*m, got.PeakRequested, allocator)
		assert.Equal(t, 100*m, got.PeakAllocated, allocator)
	}
}

// TestReservedWithoutACache is what is in blocks: each buffer has its own memory of the driver.
func TestReservedWithoutACache(t *testing.T) {
	r := history(t, 0, of(mem.Allocated, a, 20*m), of(mem.Freed, a, 20*m))
	assert.Equal(t, "driver", replay.Recorded(r).Allocator)
	assert.Equal(t, 20*m, ran(t, r, replay.Config{}).Recorded.PeakReserved)
	r = history(t, 0, of(mem.SegmentAllocated, a, 40*m), of(mem.Allocated, a, 20*m), of(mem.Freed, a, 20*m), of(mem.SegmentFreed, a, 40*m))
	assert.Equal(t, "cache", replay.Recorded(r).Allocator)
	assert.Equal(t, 40*m, ran(t, r, replay.Config{}).Recorded.PeakReserved)
}

// TestTheRecordedAllocator is a cache if the dump has one, or if it has segments.
func TestTheRecordedAllocator(t *testing.T) {
	segment := alloc.Segment{Ptr: a, Size: 20 * m, Pool: "large", Blocks: []alloc.Block{{Ptr: a, Size: 20 * m, State: alloc.Inactive}}}
	for want, s := range map[string]*snapshot.Snapshot{
		"driver":       {},
		"cache":        {Cache: &alloc.Stats{}},
		"cache ":       {Segments: []alloc.Segment{segment}},
		"expandable":   {Segments: []alloc.Segment{segment}, Settings: map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
		"expandable  ": {Cache: &alloc.Stats{}, Settings: map[string]string{"PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
	} {
		assert.Equal(t, strings.TrimSpace(want), replay.Recorded(&snapshot.Dump{Snapshot: s}).Allocator)
	}
}

// TestAPoolThatOnlyTheEndNames: before PyTorch 2.12 events do not name the pool of a segment, but the segment is there at the
// end. A buffer in it is the private pool's: another request gets its own segment.
func TestAPoolThatOnlyTheEndNames(t *testing.T) {
	for pool, segments := range map[string]int64{"[0,0]": 1, "[0,1]": 2} {
		d, _, err := torch.Read(strings.NewReader(fmt.Sprintf(`{"segments":[{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":%s,"blocks":[
{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"},{"address":%d,"size":%d,"state":"inactive"}]}],
"device_traces":[[{"action":"segment_alloc","addr":%d,"size":%d,"stream":0},{"action":"alloc","addr":%d,"size":%d,"stream":0},
{"action":"alloc","addr":%d,"size":%d,"stream":0},{"action":"free_completed","addr":%d,"size":%d,"stream":0}]]}`,
			a, 20*m, pool, a, 2*m, 2*m, a+2<<20, 18*m, a, 20*m, a, 2*m, b, 2*m, b, 2*m)))
		require.NoError(t, err)
		assert.Equal(t, segments, ran(t, d, replay.Config{}).DriverAllocs, pool)
	}
}

// TestManyPrivatePools: a history may name any number of pools. Each has a cache, up to a bound; beyond it pools share one.
func TestManyPrivatePools(t *testing.T) {
	const pools, bound = 1100, 1 << 10
	var segments []string
	for i := range pools {
		at := a + alloc.Ptr(i)<<21
		segments = append(segments, fmt.Sprintf(`{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":[0,%d],"blocks":[{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"}]}`,
			at, 2*m, i+1, at, 2*m, 2*m))
	}
	var events []string
	for i := range pools {
		at := a + alloc.Ptr(i)<<21
		events = append(events, fmt.Sprintf(`{"action":"segment_alloc","addr":%d,"size":%d,"stream":0},{"action":"alloc","addr":%d,"size":%d,"stream":0}`, at, 2*m, at, 2*m))
	}
	d, _, err := torch.Read(strings.NewReader(`{"segments":[` + strings.Join(segments, ",") + `],"device_traces":[[` + strings.Join(events, ",") + `]]}`))
	require.NoError(t, err)
	const inASegment = 10 // of 20 MiB
	assert.EqualValues(t, bound+(pools-bound+inASegment-1)/inASegment, ran(t, d, replay.Config{}).DriverAllocs)
}
