package cache_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// model is what a cache should be: a map of what is live.
type model struct {
	dev   cachetest.Device
	cache *cache.Cache
	live  map[alloc.Ptr]alloc.Bytes // requested
	ptrs  []alloc.Ptr               // live and freed, in the order of their first allocation
	stats alloc.Stats               // Requested alone, and OOMs
	waste alloc.Bytes               // the most that a block may be larger than its request
}

func (m *model) alloc(t *rapid.T, n alloc.Bytes) {
	before := m.cache.Stats()
	p, allocated, err := m.cache.AllocOn(n, 0)
	if err != nil {
		after := m.cache.Stats()
		require.Equal(t, before.Allocated, after.Allocated, "a failed call changes nothing")
		require.Equal(t, before.Requested, after.Requested)
		if errors.Is(err, alloc.ErrOutOfMemory) {
			m.stats.OOMs++
		} else {
			require.ErrorIs(t, err, sim.ErrInjected)
		}
		return
	}
	for q, size := range m.live {
		require.True(t, p+alloc.Ptr(max(n, 1)) <= q || q+alloc.Ptr(max(size, 1)) <= p, "%v and %v overlap", p, q)
	}
	require.GreaterOrEqual(t, allocated, max(n, 1))
	require.LessOrEqual(t, allocated-n, m.waste, "no more is wasted than the scheme allows")
	m.live[p] = n
	m.ptrs = append(m.ptrs, p)
	requested := &m.stats.Requested
	requested.Bytes.Current += n
	requested.Bytes.Total += n
	requested.Bytes.Peak = max(requested.Bytes.Peak, requested.Bytes.Current)
	requested.Count.Current++
	requested.Count.Total++
	requested.Count.Peak = max(requested.Count.Peak, requested.Count.Current)
}

func (m *model) free(t *rapid.T, p alloc.Ptr) {
	n, live := m.live[p]
	before := m.cache.Stats()
	err := m.cache.Free(p)
	if !live {
		require.Error(t, err)
		require.True(t, errors.Is(err, alloc.ErrDoubleFree) || errors.Is(err, alloc.ErrUnknownPtr), "%v", err)
		require.Equal(t, before, m.cache.Stats(), "a failed call changes nothing")
		return
	}
	require.NoError(t, err)
	delete(m.live, p)
	m.stats.Requested.Bytes.Current -= n
	m.stats.Requested.Count.Current--
}

func (m *model) empty(t *rapid.T) {
	before := m.cache.Stats()
	reserved := before.Reserved.Bytes.Current
	given, err := m.cache.Trim()
	if err != nil {
		require.ErrorIs(t, err, sim.ErrInjected)
	}
	after := m.cache.Stats()
	if err == nil {
		require.Equal(t, before.Reclaimable, given)
		require.Zero(t, after.Reclaimable)
	}
	require.Equal(t, reserved-given, after.Reserved.Bytes.Current)
	if err == nil && len(m.live) == 0 {
		require.Zero(t, after.Reserved.Bytes.Current, "all of it is wholly free")
	}
}

// held is what the driver has given.
func (m *model) held() alloc.Bytes {
	_, given := m.dev.Live()
	return given
}

func (m *model) check(t *rapid.T) {
	cachetest.Invariants(t, m.cache)
	stats := m.cache.Stats()
	require.Equal(t, m.stats.Requested, stats.Requested)
	require.Equal(t, m.stats.Requested.Count, stats.Allocated.Count)
	require.Equal(t, m.stats.OOMs, stats.OOMs)
	require.Equal(t, m.held(), stats.Reserved.Bytes.Current, "the driver's count of the segments is the cache's")
	seen := 0
	for segment := range m.cache.Segments() {
		for _, block := range segment.Blocks {
			if block.State == alloc.Allocated {
				seen++
				n, live := m.live[block.Ptr]
				require.True(t, live)
				require.Equal(t, n, block.Requested)
			}
		}
	}
	require.Len(t, m.live, seen)
}

// TestCacheAgainstMap runs random operations and faults against a map.
func TestCacheAgainstMap(t *testing.T) {
	for settings, waste := range map[string]alloc.Bytes{
		"":                           alloc.MiB + 512,
		"expandable_segments:True":   1023,
		"max_split_size_mb:20":       21 * alloc.MiB,
		"roundup_power2_divisions:2": 40 * alloc.MiB,
		"garbage_collection_threshold:0.5,per_process_memory_fraction:0.7": alloc.MiB + 512,
	} {
		t.Run(settings, func(t *testing.T) { testCacheAgainstMap(t, settings, waste) })
	}
}

func testCacheAgainstMap(t *testing.T, settings string, waste alloc.Bytes) {
	cfg, err := cache.ParseConfig(settings)
	require.NoError(t, err)
	sizes := rapid.OneOf(
		rapid.Int64Range(0, 4096),
		rapid.Int64Range(0, int64(alloc.MiB)),
		rapid.Int64Range(int64(alloc.MiB), int64(12*alloc.MiB)),
		rapid.Int64Range(0, int64(80*alloc.MiB)),
		rapid.SampledFrom([]int64{0, 512, 513, 1 << 20, 1<<20 + 1, 10<<20 - 512, 10 << 20, 20 << 20}),
	)
	rapid.Check(t, func(t *rapid.T) {
		dev, err := cachetest.NewDevice(sim.Config{Memory: 128 * alloc.MiB, Overhead: -1})
		require.NoError(t, err)
		m := &model{dev: dev, cache: cachetest.NewCache(t, dev, cfg), live: make(map[alloc.Ptr]alloc.Bytes), waste: waste}
		allocate := func(t *rapid.T) { m.alloc(t, alloc.Bytes(sizes.Draw(t, "size"))) }
		free := func(t *rapid.T) {
			if len(m.ptrs) == 0 {
				t.Skip("nothing is live")
			}
			m.free(t, rapid.SampledFrom(m.ptrs).Draw(t, "p"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": allocate, "alloc again": allocate, "free": free, "free again": free,
			"free anything": func(t *rapid.T) {
				m.free(t, alloc.Ptr(rapid.Uint64().Draw(t, "p")))
			},
			"empty": m.empty,
			"reset peak": func(*rapid.T) {
				m.cache.ResetPeak()
				m.stats.Requested.Bytes.Peak = m.stats.Requested.Bytes.Current
				m.stats.Requested.Count.Peak = m.stats.Requested.Count.Current
			},
			"others take memory": func(t *rapid.T) {
				dev.SetOther(alloc.Bytes(rapid.IntRange(0, 64).Draw(t, "MiB")) * alloc.MiB)
			},
			"fault": func(t *rapid.T) {
				op := rapid.SampledFrom([]string{"Alloc", "Free", "MemInfo", "Reserve", "Map", "Unmap"}).Draw(t, "op")
				dev.Inject(sim.Fault{Call: op, Nth: rapid.IntRange(1, 3).Draw(t, "nth")})
			},
			"": m.check,
		})
	})
}
