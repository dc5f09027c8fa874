package alloc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/alloctest"
)

func TestCountingDevice(t *testing.T) {
	alloctest.Device(t, func(*testing.T) alloc.Device { return alloc.NewCountingDevice(4 * alloc.GiB) })
}

func TestCountingDeviceCounts(t *testing.T) {
	dev := alloc.NewCountingDevice(8 * alloc.MiB)
	cache := alloc.NewCache(dev, alloc.CacheConfig{})
	p := mustAlloc(t, cache, 1000)
	q := mustAlloc(t, cache, 1000)
	assert.Equal(t, alloc.DeviceCounts{Allocs: 1, Used: 2 * alloc.MiB, Peak: 2 * alloc.MiB}, dev.Counts())
	require.NoError(t, cache.Free(p))
	require.NoError(t, cache.Free(q))
	_, err := cache.Alloc(9 * alloc.MiB)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, alloc.DeviceCounts{Allocs: 1, Frees: 1, Refused: 2, Peak: 2 * alloc.MiB}, dev.Counts())
}

func TestCountingDeviceWithoutEnd(t *testing.T) {
	dev := alloc.NewCountingDevice(0)
	var last alloc.Ptr
	for range 3 {
		p := mustAlloc(t, dev, alloc.MaxBytes/4)
		assert.Greater(t, p, last)
		last = p
	}
	assert.Equal(t, int64(3), dev.Counts().Allocs)
}

// BenchmarkCacheOverCountingDevice is what a replay costs at least, an event.
func BenchmarkCacheOverCountingDevice(b *testing.B) {
	for _, expandable := range []bool{false, true} {
		b.Run(fmt.Sprintf("expandable=%v", expandable), func(b *testing.B) {
			dev := alloc.NewCountingDevice(64 * alloc.GiB)
			pairs(b, alloc.NewCache(dev, alloc.CacheConfig{ExpandableSegments: expandable}))
			b.ReportMetric(float64(2*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
