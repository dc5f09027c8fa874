package cache_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// reserved returns the sizes of a cache's segments, in MiB and in order of address.
func reserved(c *cache.Cache) (sizes []alloc.Bytes) {
	for s := range c.Segments() {
		sizes = append(sizes, s.Size/alloc.MiB)
	}
	return sizes
}

// TestMemoryFraction: the cache reserves exactly as much as it may, and not a segment more.
func TestMemoryFraction(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		dev := open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})
		c := cachetest.NewCache(t, dev, cache.Config{MemoryFraction: 0.5, ExpandableSegments: expandable})
		mustAlloc(t, c, 100*alloc.MiB)
		_, err := c.Alloc(1)
		require.ErrorIs(t, err, alloc.ErrOutOfMemory)
		oom, ok := errors.AsType[*alloc.OutOfMemoryError](err)
		require.True(t, ok)
		assert.ErrorContains(t, oom.Err, "the cache may hold 100.0 MiB and holds 100.0 MiB")
	}
}

// TestMemoryFractionOfUnknownMemory: where the device does not say how much memory it has, or says more than can be
// counted, nothing limits the cache.
func TestMemoryFractionOfUnknownMemory(t *testing.T) {
	dev := open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{MemoryFraction: 0.5})
	dev.Inject(sim.Fault{Call: "MemInfo"})
	mustAlloc(t, c, 150*alloc.MiB)
	for total, limited := range map[alloc.Bytes]bool{-1: false, 0: true, 150 * alloc.MiB: true, 300 * alloc.MiB: false, math.MaxInt64: false} {
		c := cachetest.NewCache(t, &reserving{Device: counting.New(0), total: total}, cache.Config{MemoryFraction: 0.5})
		_, err := c.Alloc(150 * alloc.MiB)
		assert.Equal(t, limited, errors.Is(err, alloc.ErrOutOfMemory), "of %v", total)
	}
	mustAlloc(t, cachetest.NewCache(t, counting.New(0), cache.Config{MemoryFraction: 1}), alloc.MiB)
}

// TestGarbageCollection: before a cache reserves more, it gives back the free large segments that were unused for longer
// than the average, until it is at its threshold. Segments in use, small ones and young ones stay.
func TestGarbageCollection(t *testing.T) {
	for name, test := range map[string]struct {
		memory    alloc.Bytes // in MiB; the cache holds 104
		threshold float64
		want      []alloc.Bytes
	}{
		"the threshold is not passed":                      {416, 0.25, []alloc.Bytes{12, 40, 30, 20, 2, 60}}, // 104 MiB
		"those go that are not younger than the average":   {416, 0.24, []alloc.Bytes{12, 20, 2, 60}},
		"all that is free and large, while it has to give": {416, 0.01, []alloc.Bytes{12, 2, 60}},
		"they have just enough":                            {272, 0.125, []alloc.Bytes{12, 20, 2, 60}}, // 34 MiB: 70 too many
		"no threshold":                                     {416, 0, []alloc.Bytes{12, 40, 30, 20, 2, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			dev := open(t, sim.Config{Memory: test.memory * alloc.MiB, Overhead: -1})
			c := cachetest.NewCache(t, dev, cache.Config{MemoryFraction: 1, GarbageCollection: test.threshold})
			busy := mustAlloc(t, c, 12*alloc.MiB)
			var ptrs []alloc.Ptr
			for _, n := range []alloc.Bytes{40 * alloc.MiB, 30 * alloc.MiB, 20 * alloc.MiB, alloc.MiB} {
				ptrs = append(ptrs, mustAlloc(t, c, n))
			}
			for _, p := range ptrs { // three requests of large blocks between the frees: the second has the average age
				require.NoError(t, c.Free(p))
				for range 3 {
					require.NoError(t, c.Free(busy))
					busy = mustAlloc(t, c, 12*alloc.MiB)
					require.NoError(t, c.Free(mustAlloc(t, c, alloc.MiB)), "a small request makes no block older")
				}
			}
			mustAlloc(t, c, 60*alloc.MiB)
			assert.ElementsMatch(t, test.want, reserved(c))
			assert.Zero(t, c.Stats().Retries)
			cachetest.Invariants(t, c)
		})
	}
}

// TestOversizeGoesBackFirst: when the driver is full, blocks of MaxSplitSize or more go back before all others do: the
// smallest one that has the size, or else the largest until they have it together. That is no retry.
func TestOversizeGoesBackFirst(t *testing.T) {
	for name, test := range map[string]struct {
		kept    []alloc.Bytes // MiB of segments that are free when the driver is full
		request alloc.Bytes
		want    []alloc.Bytes
		retries int64
	}{
		"the smallest that has the size":       {[]alloc.Bytes{70, 40, 60}, 22 * alloc.MiB, []alloc.Bytes{12, 70, 22, 60}, 0},
		"it has exactly the size":              {[]alloc.Bytes{70, 32, 60}, 32*alloc.MiB - 1, []alloc.Bytes{12, 70, 32, 60}, 0},
		"a smaller request wants MaxSplitSize": {[]alloc.Bytes{70, 60, 32}, 20 * alloc.MiB, []alloc.Bytes{12, 70, 60, 20}, 0},
		"the largest together":                 {[]alloc.Bytes{40, 70, 60}, 100 * alloc.MiB, []alloc.Bytes{12, 40, 100}, 0},
		"they have exactly the size":           {[]alloc.Bytes{40, 70, 60}, 130 * alloc.MiB, []alloc.Bytes{12, 40, 130}, 0},
		"not enough: everything goes back":     {[]alloc.Bytes{70, 60, 24}, 150 * alloc.MiB, []alloc.Bytes{12, 150}, 1},
		"a small request":                      {[]alloc.Bytes{70, 60, 42}, 1, []alloc.Bytes{12, 2}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			memory := alloc.Bytes(12)
			for _, n := range test.kept {
				memory += n
			}
			dev := open(t, sim.Config{Memory: memory * alloc.MiB, Overhead: -1})
			c := cachetest.NewCache(t, dev, cache.Config{MaxSplitSize: 32 * alloc.MiB, MaxNonSplitRounding: 20 * alloc.MiB})
			mustAlloc(t, c, 12*alloc.MiB)
			var ptrs []alloc.Ptr
			for _, n := range test.kept {
				ptrs = append(ptrs, mustAlloc(t, c, n*alloc.MiB))
			}
			for _, p := range ptrs {
				require.NoError(t, c.Free(p))
			}
			mustAlloc(t, c, test.request)
			assert.ElementsMatch(t, test.want, reserved(c))
			assert.Equal(t, test.retries, c.Stats().Retries)
			cachetest.Invariants(t, c)
		})
	}
}

// TestSegmentsBesideEachOther: segments may touch, which a driver's often do.
func TestSegmentsBesideEachOther(t *testing.T) {
	const start, size = 100 * alloc.Ptr(alloc.MiB), alloc.Ptr(2 * alloc.MiB)
	dev := &badDevice{open(t, sim.Config{}), []alloc.Ptr{start, start + 2*size, start + size, start - size}}
	c := cachetest.NewCache(t, dev, cache.Config{})
	for range 7 {
		mustAlloc(t, c, alloc.MiB)
	}
	assert.Equal(t, []alloc.Bytes{2, 2, 2, 2}, reserved(c))
	for _, p := range []alloc.Ptr{start - size - 1, start + 3*size} {
		assert.ErrorIs(t, c.Free(p), alloc.ErrUnknownPtr)
	}
	assert.ErrorIs(t, c.Free(start+3*size-1), alloc.ErrUnknownPtr, "inside the last, which is allocated")
}

// TestTrimOrder: Trim frees the large pool first, then by stream, size and address, as PyTorch does.
func TestTrimOrder(t *testing.T) {
	dev := &freeing{Device: counting.New(0)}
	c := cachetest.NewCache(t, dev, cache.Config{})
	at := make(map[string]alloc.Ptr)
	for _, a := range []struct {
		name string
		n    alloc.Bytes
		on   alloc.Stream
	}{
		{"small 2", 512, 2}, {"small 0", 512, 0}, {"30 on 0", 30 * alloc.MiB, 0}, {"20 on 2", 20 * alloc.MiB, 2},
		{"20 on 0", 20 * alloc.MiB, 0}, {"20 on 1", 20 * alloc.MiB, 1}, {"20 on 0 too", 20 * alloc.MiB, 0},
	} {
		at[a.name] = allocOn(t, c, a.n, a.on)
	}
	for _, p := range at {
		require.NoError(t, c.Free(p))
	}
	_, err := c.Trim()
	require.NoError(t, err)
	var want []alloc.Ptr
	for _, name := range []string{"20 on 0", "20 on 0 too", "30 on 0", "20 on 1", "20 on 2", "small 0", "small 2"} {
		want = append(want, at[name])
	}
	assert.Equal(t, want, dev.freed)
}

// freeing keeps the addresses that were freed, in order.
type freeing struct {
	alloc.Device
	freed []alloc.Ptr
}

func (d *freeing) Free(p alloc.Ptr) error {
	d.freed = append(d.freed, p)
	return d.Device.Free(p)
}
