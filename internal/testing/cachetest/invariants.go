package cachetest

import (
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
)

// Invariants checks what must be true of a cache at any time: blocks tile their
// segment, no two neighbours are inactive, the sums over all blocks are what
// Stats says, allocated + inactive + pending = reserved <= what the driver says is used,
// and current <= peak <= total. Nobody may use the cache meanwhile. If the driver refuses MemInfo, that
// comparison is left out.
func Invariants(t require.TestingT, cache *cache.Cache) {
	stats := cache.Stats()
	var sum alloc.Stats
	end := alloc.Ptr(0)
	for segment := range cache.Segments() {
		require.GreaterOrEqual(t, segment.Ptr, end, "segments are in order and apart")
		end = segment.Ptr + alloc.Ptr(segment.Size)
		segmentInvariants(t, segment, &sum)
	}
	for _, usage := range []struct {
		name      string
		got, want alloc.Usage
	}{
		{"requested", stats.Requested, sum.Requested},
		{"allocated", stats.Allocated, sum.Allocated},
		{"inactive", stats.Inactive, sum.Inactive},
		{"pending", stats.Pending, sum.Pending},
		{"reserved", stats.Reserved, sum.Reserved},
	} {
		require.Equal(t, usage.want.Bytes.Current, usage.got.Bytes.Current, "%s bytes are the sum", usage.name)
		require.Equal(t, usage.want.Count.Current, usage.got.Count.Current, "%s count is the sum", usage.name)
		gaugeInvariants(t, usage.name, usage.got.Bytes)
		gaugeInvariants(t, usage.name, usage.got.Count)
	}
	require.Equal(t, stats.Reserved.Bytes.Current, stats.Allocated.Bytes.Current+stats.Inactive.Bytes.Current+stats.Pending.Bytes.Current)
	require.LessOrEqual(t, stats.Requested.Bytes.Current, stats.Allocated.Bytes.Current)
	require.Equal(t, sum.LargestInactive, stats.LargestInactive)
	if info, err := cache.MemInfo(); err == nil {
		require.LessOrEqual(t, stats.Reserved.Bytes.Current, info.Used())
	}
}

// segmentInvariants checks one segment and adds it to sum.
func segmentInvariants(t require.TestingT, segment alloc.Segment, sum *alloc.Stats) {
	count(&sum.Reserved, segment.Size)
	at, last := segment.Ptr, alloc.BlockState(0)
	for _, block := range segment.Blocks {
		require.Equal(t, at, block.Ptr, "blocks tile their segment")
		require.Positive(t, block.Size)
		require.Zero(t, block.Size%512)
		at += alloc.Ptr(block.Size)
		require.LessOrEqual(t, block.Requested, block.Size)
		switch block.State {
		case alloc.Inactive:
			require.NotEqual(t, alloc.Inactive, last, "two inactive neighbours at %v", block.Ptr)
			count(&sum.Inactive, block.Size)
			sum.LargestInactive = max(sum.LargestInactive, block.Size)
		case alloc.Pending:
			count(&sum.Pending, block.Size)
		default:
			count(&sum.Allocated, block.Size)
			count(&sum.Requested, block.Requested)
		}
		last = block.State
	}
	require.Equal(t, segment.Ptr+alloc.Ptr(segment.Size), at, "blocks tile their segment")
}

func count(usage *alloc.Usage, n alloc.Bytes) {
	usage.Bytes.Current += n
	usage.Count.Current++
}

func gaugeInvariants[T ~int64](t require.TestingT, name string, gauge alloc.Gauge[T]) {
	require.GreaterOrEqual(t, gauge.Current, T(0), name)
	require.LessOrEqual(t, gauge.Current, gauge.Peak, "%s: current <= peak", name)
	require.LessOrEqual(t, gauge.Peak, gauge.Total, "%s: peak <= total", name)
}

// NewCache returns a cache over a device. It ends the test if a setting is not valid.
func NewCache(t require.TestingT, dev alloc.Device, cfg cache.Config) *cache.Cache {
	c, err := cache.New(dev, cfg)
	require.NoError(t, err)
	return c
}
