package cache

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/stretchr/testify/require"
)

func mustNew(t *testing.T, dev alloc.Device, cfg Config) *Cache {
	c, err := New(dev, cfg)
	require.NoError(t, err)
	return c
}

// TestTooManyStreams has a cache with as many streams as it can number.
func TestTooManyStreams(t *testing.T) {
	require.EqualValues(t, ^streamID(0), maxStreams, "each has a number, and 0 is the default stream's")
	dev := counting.New(0)
	c := mustNew(t, dev, Config{})
	_, _, err := c.AllocOn(512, 1)
	require.NoError(t, err)
	for len(c.streams.others) < maxStreams {
		c.streams.others = append(c.streams.others, c.streams.others[0])
	}
	before := dev.Counts()
	_, _, err = c.AllocOn(512, 2)
	require.ErrorContains(t, err, "stream 0x2")
	require.Equal(t, before, dev.Counts(), "the driver is not asked")
	_, _, err = c.AllocOn(512, 1)
	require.NoError(t, err)
	_, _, err = c.AllocOn(512, 0)
	require.NoError(t, err)
}

// TestStreamNumbersAreReused bounds what a cache keeps of streams that have gone.
func TestStreamNumbersAreReused(t *testing.T) {
	c := mustNew(t, counting.New(0), Config{})
	for s := range alloc.Stream(100) {
		p, _, err := c.AllocOn(512, s)
		require.NoError(t, err)
		require.NoError(t, c.Free(p))
		_, err = c.Trim()
		require.NoError(t, err)
	}
	require.Len(t, c.streams.others, 1)
	require.Empty(t, c.streams.number)
}

// TestLookupsAreCountedOnce asks for large blocks in a ledger's way: from the cache first, or not.
func TestLookupsAreCountedOnce(t *testing.T) {
	c := mustNew(t, counting.New(0), Config{MaxSplitSize: 20 * alloc.MiB})
	enter := func(cachelock.Block, alloc.Ptr, alloc.Bytes) (cachelock.Owner, error) { return 1, nil }
	for i, first := range []bool{true, false} {
		if first {
			_, _, _, ok := locked{c}.Alloc(2*alloc.MiB, alloc.Stream(i), 1)
			require.False(t, ok)
		}
		require.NoError(t, locked{c}.AllocSlow(2*alloc.MiB, alloc.Stream(i), enter))
		require.EqualValues(t, i+1, c.clock)
	}
	_, _, _, ok := locked{c}.Alloc(2*alloc.MiB, 0, 1)
	require.True(t, ok)
	require.EqualValues(t, 3, c.clock)
	_, err := c.Alloc(alloc.MiB)
	require.NoError(t, err)
	require.EqualValues(t, 3, c.clock, "a request of 1 MiB is small")
	_, err = c.Alloc(alloc.MiB + 1)
	require.NoError(t, err)
	require.EqualValues(t, 4, c.clock)
}
