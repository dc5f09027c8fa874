package counting_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func TestConformance(t *testing.T) {
	alloctest.Device(t, func(*testing.T) alloc.Device { return counting.New(4 * alloc.GiB) })
}

func TestCounts(t *testing.T) {
	dev := counting.New(8 * alloc.MiB)
	cache := cachetest.NewCache(t, dev, cache.Config{})
	p, err := cache.Alloc(1000)
	require.NoError(t, err)
	q, err := cache.Alloc(1000)
	require.NoError(t, err)
	assert.Equal(t, counting.Counts{Allocs: 1, Used: 2 * alloc.MiB, Peak: 2 * alloc.MiB}, dev.Counts())
	require.NoError(t, cache.Free(p))
	require.NoError(t, cache.Free(q))
	_, err = cache.Alloc(9 * alloc.MiB)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, counting.Counts{Allocs: 1, Frees: 1, Refused: 2, Peak: 2 * alloc.MiB}, dev.Counts())
}

func TestWithoutEnd(t *testing.T) {
	dev := counting.New(0)
	var last alloc.Ptr
	for range 3 {
		p, err := dev.Alloc(math.MaxInt64 / 4)
		require.NoError(t, err)
		assert.Greater(t, p, last)
		last = p
	}
	assert.Equal(t, int64(3), dev.Counts().Allocs)
}
