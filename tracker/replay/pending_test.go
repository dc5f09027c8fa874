package replay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// TestPendingBlocks replays a program whose blocks other streams keep busy: it takes what it took.
func TestPendingBlocks(t *testing.T) {
	for name, events := range map[string]int{"whole history": 0, "torn history": 6, "only pending": 3} {
		t.Run(name, func(t *testing.T) {
			tr, _ := exporttest.Streams(t, tracker.Config{MaxEvents: events})
			r := tr.Dump()
			cfg := replay.Recorded(r)
			got, err := replay.Run(r, cfg)
			require.NoError(t, err)
			assert.True(t, got.Fits)
			assert.Nil(t, got.Gap())
			if events == 0 {
				assert.Equal(t, peaks(got.Recorded), peaks(got.Levels))
			}
			assert.Equal(t, got.Recorded.PeakReserved, got.PeakReserved)
		})
	}
}

// TestPendingBlocksWhenMemoryIsShort: an allocator that runs out waits for other streams. On a device
// where two batches fit, the third waits for the first.
func TestPendingBlocksWhenMemoryIsShort(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr := exporttest.New(t, tracker.Config{Device: device})
	for range 6 {
		b, err := tr.AllocOn(1, alloc.Shape{20 << 20}, alloc.Uint8, tracker.Input)
		require.NoError(t, err)
		require.NoError(t, device.Queue(2, b.Ptr(), b.Bytes(), time.Second))
		require.NoError(t, b.FreeOn(2))
	}
	r := tr.Dump()
	require.Equal(t, 120*alloc.MiB, r.Snapshot.Pending)
	for allocator, most := range map[string]alloc.Bytes{"cache": 120 * alloc.MiB, "expandable": 120 * alloc.MiB, "driver": 20 * alloc.MiB} {
		got, err := replay.Run(r, replay.Config{Allocator: allocator})
		require.NoError(t, err)
		assert.Equal(t, most, got.PeakReserved, "%v", allocator)
		got, err = replay.Run(r, replay.Config{Allocator: allocator, Memory: 50 * alloc.MiB})
		require.NoError(t, err)
		assert.True(t, got.Fits, "%v", allocator)
		found, err := replay.Smallest(r, replay.Config{Allocator: allocator})
		require.NoError(t, err)
		assert.Equal(t, 20*alloc.MiB, found.Memory, "%v", allocator)
	}
}

// TestExplainPendingBlocks: the recording has blocks that wait for other streams.
func TestExplainPendingBlocks(t *testing.T) {
	r := open(t, "verl-vllm-private-pools", 0)
	want := alloc.Bytes(0)
	for _, s := range r.Snapshot.Segments {
		for _, b := range s.Blocks {
			if b.State == alloc.Pending {
				want += b.Size
			}
		}
	}
	x, err := replay.Explain(r, "")
	require.NoError(t, err)
	assert.NotZero(t, want)
	assert.Equal(t, want, x.Pending)
	assert.Equal(t, x.Reserved, x.Requested+x.Rounding+x.Unsplit+x.Pending+x.Reclaimable+x.Pinned)
	assert.Contains(t, x.String(), "freed, in use on other streams")
}

// TestPendingBlocksAreNotInactive registers more than there is room for while a freed block is still in use: nothing
// could have had the memory of that block.
func TestPendingBlocksAreNotInactive(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	freed := p.live[0]
	p.free(0)
	others := tables.EventEntry{Action: mem.Registered, Ptr: 0x1000, Allocated: 40 * alloc.MiB, Tensor: p.tensor(40 * alloc.MiB)}
	p.add(others)
	p.add(tables.EventEntry{Action: mem.FreeCompleted, Ptr: freed.ptr, Allocated: freed.allocated})
	others.Action = mem.Unregistered
	p.add(others)
	got, err := replay.Run(p.dump(0), replay.Config{Memory: 50 * alloc.MiB})
	require.NoError(t, err)
	require.NotNil(t, got.OOM())
	assert.Equal(t, 20*alloc.MiB, got.OOM().Reserved)
	assert.Zero(t, got.OOM().Allocated)
	assert.Zero(t, got.OOM().Inactive)
}

// TestWhatThereWasAtAFailure of a request beside a buffer of 2 MiB in a segment of 20.
func TestWhatThereWasAtAFailure(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(2 * alloc.MiB)
	p.add(tables.EventEntry{Action: mem.Registered, Ptr: 0x1000, Allocated: 40 * alloc.MiB, Tensor: p.tensor(40 * alloc.MiB)})
	got, err := replay.Run(p.dump(0), replay.Config{Memory: 50 * alloc.MiB})
	require.NoError(t, err)
	require.NotNil(t, got.OOM())
	assert.Equal(t, 20*alloc.MiB, got.OOM().Reserved)
	assert.Equal(t, 2*alloc.MiB, got.OOM().Allocated)
	assert.Equal(t, 18*alloc.MiB, got.OOM().Inactive)
	assert.Equal(t, 18*alloc.MiB, got.OOM().LargestInactive)
	assert.Equal(t, 30*alloc.MiB, got.OOM().Free)
}

// TestARequestWaitsForPendingBlocks: one that does not fit otherwise waits, and the event that tells when the memory became
// free frees nothing again.
func TestARequestWaitsForPendingBlocks(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	freed := p.live[0]
	p.free(0)
	p.alloc(24 * alloc.MiB)
	p.add(tables.EventEntry{Action: mem.FreeCompleted, Ptr: freed.ptr, Allocated: freed.allocated})
	got, err := replay.Run(p.dump(0), replay.Config{Memory: 30 * alloc.MiB})
	require.NoError(t, err)
	assert.True(t, got.Fits)
	assert.EqualValues(t, 1, got.Retries)
	assert.EqualValues(t, 2, got.DriverAllocs)
	assert.EqualValues(t, 1, got.DriverFrees)
}
