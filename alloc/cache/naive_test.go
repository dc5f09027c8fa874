package cache_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// settings are the kinds of allocator that are compared with the naive one.
var settings = []string{
	"",
	"expandable_segments:True",
	"max_split_size_mb:32",
	"max_split_size_mb:20,max_non_split_rounding_mb:64",
	"roundup_power2_divisions:4",
	"roundup_power2_divisions:[1:2,8:16,>:1]",
	"per_process_memory_fraction:0.75",
	"garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
	"garbage_collection_threshold:0.3,per_process_memory_fraction:1,max_split_size_mb:40",
	"expandable_segments:True,max_split_size_mb:20,roundup_power2_divisions:2",
	"expandable_segments:True,per_process_memory_fraction:0.5,garbage_collection_threshold:0.5",
}

// TestNaive runs random programs through the cache and the naive allocator, each on a device of
// its own, and compares every address, every driver call and every block.
func TestNaive(t *testing.T) {
	for _, s := range settings {
		t.Run(s, func(t *testing.T) {
			cfg, err := cache.ParseConfig(s)
			require.NoError(t, err)
			seeds := uint64(60)
			if testing.Short() {
				seeds = 4
			}
			for seed := range seeds {
				compareWithNaive(t, cfg, seed, 1)
				compareWithNaive(t, cfg, seed, 4)
			}
		})
	}
}

// streamed is a counting device with the streams of a simulated one.
type streamed struct {
	*counting.Device
	gpu cachetest.Device
}

func newStreamed(t *testing.T, memory alloc.Bytes) streamed {
	return streamed{counting.New(memory), open(t, sim.Config{})}
}

func (s streamed) RecordEvent(on alloc.Stream) (capability.Event, error) {
	return s.gpu.RecordEvent(on)
}

func compareWithNaive(t *testing.T, cfg cache.Config, seed uint64, streams int) {
	const memory = 256 * alloc.MiB
	random := rand.New(rand.NewPCG(seed, 1))
	dev, naiveDev := newStreamed(t, memory), newStreamed(t, memory)
	c, naive := cachetest.NewCache(t, dev, cfg), cachetest.NewNaive(naiveDev, cfg)
	var live []alloc.Ptr
	for step := range 400 {
		switch n := random.IntN(100); {
		case n < 55:
			size, on := randomSize(random), alloc.Stream(random.IntN(streams))
			p, _, err := c.AllocOn(size, on)
			q, naiveErr := naive.AllocOn(size, on)
			require.Equal(t, naiveErr == nil, err == nil, "seed %d, step %d: alloc %v: %v", seed, step, size, err)
			require.Equal(t, q, p, "seed %d, step %d: alloc %v", seed, step, size)
			if err == nil {
				live = append(live, p)
			}
		case n < 65 && streams > 1 && len(live) > 0:
			p := live[random.IntN(len(live))]
			on, takes := alloc.Stream(random.IntN(streams)), time.Duration(random.IntN(40))
			require.NoError(t, dev.gpu.Queue(on, 0, 0, takes))
			require.NoError(t, naiveDev.gpu.Queue(on, 0, 0, takes))
			require.NoError(t, c.RecordStream(p, on))
			naive.RecordStream(p, on)
		case n < 99 && len(live) > 0:
			i := random.IntN(len(live))
			require.NoError(t, c.Free(live[i]))
			require.NoError(t, naive.Free(live[i]))
			live = slices.Delete(live, i, i+1)
			by := time.Duration(random.IntN(8))
			dev.gpu.Advance(by)
			naiveDev.gpu.Advance(by)
		case n == 99:
			_, err := c.Trim()
			require.NoError(t, err)
			naive.Trim()
		}
		require.Equal(t, naiveDev.Counts(), dev.Counts(), "seed %d, step %d, %d streams", seed, step, streams)
		require.Equal(t, naiveDev.gpu.Advance(0), dev.gpu.Advance(0), "they wait for the same work")
		require.Equal(t, naive.Reserved, c.Stats().Reserved.Bytes.Current)
	}
	cachetest.Invariants(t, c)
	var segments []cachetest.NaiveSegment
	for s := range c.Segments() {
		segments = append(segments, cachetest.NaiveSegment{
			Ptr: s.Ptr, Size: s.Size, Small: s.Pool == "small", Stream: s.Stream, Blocks: s.Blocks,
		})
	}
	require.Equal(t, naive.Segments(), segments, "seed %d", seed)
}

// randomSize returns one of those that the pools treat differently.
func randomSize(random *rand.Rand) alloc.Bytes {
	limits := []int{512, 8192, 1 << 20, 4 << 20, 12 << 20, 64 << 20}
	n := random.IntN(limits[random.IntN(len(limits))])
	if random.IntN(3) == 0 {
		n = 1 << random.IntN(26)
	}
	return alloc.Bytes(n)
}
