package cachetest

import (
	"cmp"

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
		atMost(t, end, segment.Ptr, "segments are in order and apart")
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
		equal(t, usage.want.Bytes.Current, usage.got.Bytes.Current, "%s bytes are the sum", usage.name)
		equal(t, usage.want.Count.Current, usage.got.Count.Current, "%s count is the sum", usage.name)
		gaugeInvariants(t, usage.name, usage.got.Bytes)
		gaugeInvariants(t, usage.name, usage.got.Count)
	}
	equal(t, stats.Reserved.Bytes.Current, stats.Allocated.Bytes.Current+stats.Inactive.Bytes.Current+stats.Pending.Bytes.Current)
	atMost(t, stats.Requested.Bytes.Current, stats.Allocated.Bytes.Current)
	equal(t, sum.LargestInactive, stats.LargestInactive)
	if info, err := cache.MemInfo(); err == nil {
		atMost(t, stats.Reserved.Bytes.Current, info.Used())
	}
}

// segmentInvariants checks one segment and adds it to sum.
func segmentInvariants(t require.TestingT, segment alloc.Segment, sum *alloc.Stats) {
	count(&sum.Reserved, segment.Size)
	at, last := segment.Ptr, alloc.BlockState(0)
	for _, block := range segment.Blocks {
		equal(t, at, block.Ptr, "blocks tile their segment")
		atMost(t, 1, block.Size)
		equal(t, 0, block.Size%512)
		at += alloc.Ptr(block.Size)
		atMost(t, block.Requested, block.Size)
		switch block.State {
		case alloc.Inactive:
			if last == alloc.Inactive {
				require.Fail(t, "two inactive neighbours", "at %v", block.Ptr)
			}
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
	equal(t, segment.Ptr+alloc.Ptr(segment.Size), at, "blocks tile their segment")
}

func count(usage *alloc.Usage, n alloc.Bytes) {
	usage.Bytes.Current += n
	usage.Count.Current++
}

func gaugeInvariants[T ~int64](t require.TestingT, name string, gauge alloc.Gauge[T]) {
	atMost(t, 0, gauge.Current, name)
	atMost(t, gauge.Current, gauge.Peak, "%s: current <= peak", name)
	atMost(t, gauge.Peak, gauge.Total, "%s: peak <= total", name)
}

// equal and atMost ask require only where it will fail: its reflection took a third of the time of the tests that check a cache
// after each step.
func equal[T comparable](t require.TestingT, want, got T, message ...any) {
	if got != want {
		require.Equal(t, want, got, message...)
	}
}

func atMost[T cmp.Ordered](t require.TestingT, least, most T, message ...any) {
	if least > most {
		require.LessOrEqual(t, least, most, message...)
	}
}

// NewCache returns a cache over a device. It ends the test if a setting is not valid.
func NewCache(t require.TestingT, dev alloc.Device, cfg cache.Config) *cache.Cache {
	c, err := cache.New(dev, cfg)
	require.NoError(t, err)
	return c
}
