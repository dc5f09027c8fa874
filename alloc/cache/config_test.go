package cache_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func TestParseConfig(t *testing.T) {
	same := func(n int) (d [16]int) {
		for i := range d {
			d[i] = n
		}
		return d
	}
	for s, want := range map[string]cache.Config{
		"":                          {},
		"expandable_segments:True":  {ExpandableSegments: true},
		"expandable_segments:True,": {ExpandableSegments: true},
		"expandable_segments:True, expandable_segments:False": {},
		" max_split_size_mb : 128 ":                           {MaxSplitSize: 128 * alloc.MiB},
		"max_split_size_mb:9223372036854775807":               {MaxSplitSize: math.MaxInt64 / alloc.MiB * alloc.MiB},
		"max_split_size_mb:20,max_non_split_rounding_mb:40":   {MaxSplitSize: 20 * alloc.MiB, MaxNonSplitRounding: 40 * alloc.MiB},
		"garbage_collection_threshold:0.6":                    {GarbageCollection: 0.6},
		"per_process_memory_fraction:1.0":                     {MemoryFraction: 1},
		"roundup_power2_divisions:8":                          {Roundup: same(8)},
		"roundup_power2_divisions:[>:4]":                      {Roundup: same(4)},
		"roundup_power2_divisions:[]":                         {},
		"roundup_power2_divisions:[2:2,8:4]":                  {Roundup: [16]int{2, 2, 0, 4}},
		"roundup_power2_divisions:[4:2,>:8]":                  {Roundup: [16]int{2, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
		"roundup_power2_divisions:[256:1,512:2,>:8]": {
			Roundup: [16]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 8, 8, 8, 8}},
		"roundup_power2_divisions:[1:2,8:4,1048576:16],expandable_segments:True": {
			Roundup: [16]int{2, 0, 0, 4, 15: 16}, ExpandableSegments: true},
		"backend:native,pinned_use_cuda_host_register:True,release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:False": {},
	} {
		got, err := cache.ParseConfig(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, got, s)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for s, want := range map[string]string{
		"expandable_segment:True":                       `unknown key "expandable_segment"`,
		"expandable_segments":                           "it ends too soon",
		"expandable_segments:":                          "it ends too soon",
		"expandable_segments:true":                      `expandable_segments "true": want True or False`,
		"expandable_segments=True":                      "it ends too soon",
		"max_split_size_mb:19":                          "max_split_size_mb 19.0 MiB: want at least 20.0 MiB",
		"max_split_size_mb:0":                           "max_split_size_mb 0: want at least 20",
		"max_split_size_mb:-1":                          `"-1": want a whole number`,
		"max_split_size_mb:99999999999999999999":        "want a whole number",
		"max_non_split_rounding_mb:1":                   "want at least 20.0 MiB",
		"max_split_size_mb:128;expandable:True":         "want a whole number",
		"max_split_size_mb:128 max_split_size_mb:64":    "want a whole number",
		"max_split_size_mb:128,,":                       "it ends too soon",
		"garbage_collection_threshold:1":                "want more than 0 and less than 1",
		"garbage_collection_threshold:0":                "want a number above 0",
		"garbage_collection_threshold:NaN":              "want a number above 0",
		"per_process_memory_fraction:1.5":               "want more than 0, at most 1",
		"roundup_power2_divisions:3":                    "roundup_power2_divisions 3: want a power of two",
		"roundup_power2_divisions:0":                    "want a power of two",
		"roundup_power2_divisions:":                     "it ends too soon",
		"roundup_power2_divisions:[":                    "it ends too soon",
		"roundup_power2_divisions:[3:1]":                "a range of 3 MiB: want a power of two",
		"roundup_power2_divisions:[0:1]":                "a range of 0 MiB: want a power of two",
		"roundup_power2_divisions:[256:3]":              "want a power of two",
		"roundup_power2_divisions:[256:1":               "it ends too soon",
		"roundup_power2_divisions:[256:1 512:2]":        "1512: want a power of two", // spaces are nothing
		"roundup_power2_divisions:[256]":                `"]" where ":" is wanted`,
		"backend:cudaMallocAsync":                       "want native",
		"large_segment_size_mb:10":                      "large_segment_size_mb 10.0 MiB: want whole MiB, more than 10.0 MiB",
		"large_segment_size_mb:40,max_split_size_mb:30": "max_split_size_mb 30.0 MiB: want at least 40.0 MiB",
		"throw_on_cudamalloc_oom:yes":                   `throw_on_cudamalloc_oom "yes": want True or False`,
		"expandable_segments_reserve:0":                 `want a part of the memory, such as 0.5, or a size, such as 40G`,
		"expandable_segments_reserve:1e999G":            `want a part of the memory`,
		"expandable_segments_reserve_by_class:[a:1":     "it ends too soon",
	} {
		cfg, err := cache.ParseConfig(s)
		assert.ErrorContains(t, err, want, s)
		assert.ErrorContains(t, err, "parse allocator settings", s)
		assert.Zero(t, cfg, s)
	}
}

// TestSettingsAtTheirLimits has each bounded setting at its limit, and just beyond.
func TestSettingsAtTheirLimits(t *testing.T) {
	for s, valid := range map[string]bool{
		"large_segment_size_mb:10":                              false, // a request of 10 MiB gets a segment of its own
		"large_segment_size_mb:11":                              true,
		"large_segment_size_mb:1048576":                         true, // 1 TiB
		"large_segment_size_mb:1048577":                         false,
		"max_split_size_mb:19":                                  false,
		"max_split_size_mb:20":                                  true,
		"max_split_size_mb:30,large_segment_size_mb:30":         true,
		"max_split_size_mb:29,large_segment_size_mb:30":         false,
		"max_non_split_rounding_mb:19":                          false,
		"max_non_split_rounding_mb:20":                          true,
		"max_non_split_rounding_mb:30,large_segment_size_mb:30": true,
		"max_non_split_rounding_mb:29,large_segment_size_mb:30": false,
		"garbage_collection_threshold:0.999":                    true,
		"garbage_collection_threshold:1":                        false,
		"per_process_memory_fraction:1":                         true,
		"per_process_memory_fraction:1.0001":                    false,
		"roundup_power2_divisions:1":                            true,
		"roundup_power2_divisions:1073741824":                   true, // 2^30
		"roundup_power2_divisions:2147483648":                   false,
		"roundup_power2_divisions:[1:1]":                        true,
		"expandable_segments_reserve:0.001":                     true,
		"expandable_segments_reserve:-0.001":                    false,
		"expandable_segments_reserve:1e300G":                    true,
	} {
		_, err := cache.ParseConfig(s)
		assert.Equal(t, valid, err == nil, "%s: %v", s, err)
	}
	for _, test := range []struct {
		cfg   cache.Config
		valid bool
	}{
		{cache.Config{GarbageCollection: 0}, true},
		{cache.Config{GarbageCollection: -0.1}, false},
		{cache.Config{GarbageCollection: math.NaN()}, false},
		{cache.Config{MemoryFraction: -0.1}, false},
		{cache.Config{MemoryFraction: math.NaN()}, false},
		{cache.Config{MaxSplitSize: -1}, false},
		{cache.Config{MaxNonSplitRounding: -1}, false},
		{cache.Config{Roundup: [16]int{3: 4}}, true},
		{cache.Config{Roundup: [16]int{3: 6}}, false},
		{cache.Config{Roundup: [16]int{3: -4}}, false},
		{cache.Config{Roundup: [16]int{3: math.MinInt}}, false},
	} {
		_, err := cache.New(counting.New(0), test.cfg)
		assert.Equal(t, test.valid, err == nil, "%+v: %v", test.cfg, err)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add("roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:20")
	f.Fuzz(func(t *testing.T, s string) {
		if cfg, err := cache.ParseConfig(s); err == nil {
			cachetest.NewCache(t, counting.New(0), cfg)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	_, err := cache.New(counting.New(0), cache.Config{MaxSplitSize: 1})
	assert.EqualError(t, err, "new cache on Counting device 0: max_split_size_mb 1 B: want at least 20.0 MiB")
}

// plain hides the optional methods of a device.
type plain struct{ alloc.Device }

// older is a device whose driver lacks virtual memory.
type older struct{ cachetest.Device }

func (older) Reserve(alloc.Bytes, alloc.Bytes) (alloc.Ptr, error) { return 0, errors.ErrUnsupported }

func TestExpandableNeedsVirtualMemory(t *testing.T) {
	alloctest.Device(t, func(t *testing.T) alloc.Device {
		return cachetest.NewCache(t, older{open(t, sim.Config{})}, cache.Config{ExpandableSegments: true})
	})
	c := cachetest.NewCache(t, older{open(t, sim.Config{})}, cache.Config{ExpandableSegments: true})
	p := mustAlloc(t, c, 5*alloc.MiB)
	cachetest.Invariants(t, c)
	require.NoError(t, c.Free(p))
	cachetest.Invariants(t, c)
	assert.Equal(t, 20*alloc.MiB, c.Stats().Reclaimable)
	require.NoError(t, c.Close())
}

func TestExpandableNeedsVirtualDevice(t *testing.T) {
	dev := open(t, sim.Config{})
	c := cachetest.NewCache(t, plain{dev}, cache.Config{ExpandableSegments: true})
	mustAlloc(t, c, alloc.MiB)
	assert.Zero(t, dev.Calls("Map"))
	assert.Equal(t, 1, dev.Calls("Alloc"))
}

// TestExpandableSegments shows the setting at work: what was many segments is one.
func TestExpandableSegments(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	var events []cachelock.Event
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	c.Locked().Notify(func(e cachelock.Event) { events = append(events, e) }, nil)
	first, second, third := mustAlloc(t, c, 20*alloc.MiB), mustAlloc(t, c, 20*alloc.MiB), mustAlloc(t, c, 20*alloc.MiB)
	assert.Equal(t, int64(1), c.Stats().Reserved.Count.Current)
	require.NoError(t, c.Free(second))
	given, err := c.Trim()
	require.NoError(t, err)
	assert.Equal(t, 20*alloc.MiB, given)
	assert.Equal(t, int64(2), c.Stats().Reserved.Count.Current, "a hole makes two of it")
	assert.ErrorIs(t, c.Free(second), alloc.ErrUnknownPtr)
	require.NoError(t, c.Free(first))
	require.NoError(t, c.Free(third))
	p := mustAlloc(t, c, 60*alloc.MiB)
	assert.Equal(t, first, p, "the pieces serve one request")
	require.NoError(t, c.Free(p))
	require.NoError(t, c.Close())
	_, held := dev.Live()
	assert.Zero(t, held)
	assert.Equal(t, []cachelock.Event{
		{Action: cachelock.SegmentMap, Ptr: first, Size: 20 * alloc.MiB},
		{Action: cachelock.SegmentMap, Ptr: second, Size: 20 * alloc.MiB},
		{Action: cachelock.SegmentMap, Ptr: third, Size: 20 * alloc.MiB},
		{Action: cachelock.SegmentUnmap, Ptr: second, Size: 20 * alloc.MiB},
		{Action: cachelock.SegmentMap, Ptr: second, Size: 20 * alloc.MiB},
		{Action: cachelock.SegmentUnmap, Ptr: first, Size: 60 * alloc.MiB},
	}, events)
}

func TestCacheWithSettings(t *testing.T) {
	for _, s := range settings {
		t.Run(s, func(t *testing.T) {
			cfg, err := cache.ParseConfig(s)
			require.NoError(t, err)
			alloctest.Device(t, func(t *testing.T) alloc.Device {
				return cachetest.NewCache(t, open(t, sim.Config{Memory: alloc.GiB}), cfg)
			})
		})
	}
}

// TestSettingsBesideEachOther has goroutines allocate, free, empty and look at a cache
// whose memory is too small for them, so that each waits for others in the middle
// of what it does.
func TestSettingsBesideEachOther(t *testing.T) {
	for _, s := range settings {
		t.Run(s, func(t *testing.T) {
			cfg, err := cache.ParseConfig(s)
			require.NoError(t, err)
			dev := open(t, sim.Config{Memory: 128 * alloc.MiB, Overhead: -1})
			c := cachetest.NewCache(t, dev, cfg)
			var group sync.WaitGroup
			for w := range 4 {
				group.Go(func() {
					random := rand.New(rand.NewPCG(uint64(w), 2))
					var live []alloc.Ptr
					for range 300 {
						switch n := random.IntN(20); {
						case n < 10:
							p, err := c.Alloc(randomSize(random))
							if err == nil {
								live = append(live, p)
							} else {
								assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
							}
						case n < 18 && len(live) > 0:
							i := random.IntN(len(live))
							assert.NoError(t, c.Free(live[i]))
							live = slices.Delete(live, i, i+1)
						case n == 18:
							_, err := c.Trim()
							assert.NoError(t, err)
						case n == 19:
							for segment := range c.Segments() {
								assert.Positive(t, segment.Size)
							}
						}
					}
					for _, p := range live {
						assert.NoError(t, c.Free(p))
					}
				})
			}
			group.Wait()
			cachetest.Invariants(t, c)
			require.NoError(t, c.Close())
			assert.Zero(t, c.Stats().Reserved.Bytes.Current)
			_, held := dev.Live()
			assert.Zero(t, held)
		})
	}
}

// TestExpandableGivesBackAddresses closes a cache whose first request found no memory.
func TestExpandableGivesBackAddresses(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	dev.SetOther(64 * alloc.MiB)
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	_, err := c.Alloc(1)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, 1, dev.Calls("Reserve"))
	require.NoError(t, c.Close())
	assert.Equal(t, 2, dev.Calls("Reserve"), "and it is released")
}

// TestLargeSegmentSize: requests above 1 MiB and below 10 MiB share segments of that size, and an expandable one grows
// by it.
func TestLargeSegmentSize(t *testing.T) {
	for _, settings := range []string{
		"large_segment_size_mb:12,max_split_size_mb:12,throw_on_cudamalloc_oom:True",
		"large_segment_size_mb:12,expandable_segments:True,expandable_segments_reserve_by_class:[a:0.5,b:8G]",
	} {
		cfg, err := cache.ParseConfig(settings)
		require.NoError(t, err)
		dev, err := cachetest.NewDevice(sim.Config{})
		require.NoError(t, err)
		c := cachetest.NewCache(t, dev, cfg)
		var reserved []alloc.Bytes
		for _, n := range []alloc.Bytes{alloc.MiB, 2 * alloc.MiB, 9 * alloc.MiB, 10 * alloc.MiB} {
			_, err := c.Alloc(n)
			require.NoError(t, err)
			reserved = append(reserved, c.Stats().Reserved.Bytes.Current/alloc.MiB)
		}
		want := []alloc.Bytes{2, 14, 14, 24}
		if cfg.ExpandableSegments {
			want = []alloc.Bytes{2, 14, 14, 26}
		}
		assert.Equal(t, want, reserved, settings)
	}
}

// TestReserve: a request for more than a segment has addresses is out of memory, and smaller ones get segments one
// beside the other.
func TestReserve(t *testing.T) {
	for _, settings := range []string{"expandable_segments_reserve:0.25", "expandable_segments_reserve:0.0390625G"} {
		cfg, err := cache.ParseConfig("expandable_segments:True," + settings)
		require.NoError(t, err)
		dev, err := cachetest.NewDevice(sim.Config{Memory: 160 * alloc.MiB, Overhead: -1})
		require.NoError(t, err)
		c := cachetest.NewCache(t, dev, cfg)
		_, err = c.Alloc(41 * alloc.MiB)
		assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
		for range 3 {
			_, err = c.Alloc(40 * alloc.MiB)
			require.NoError(t, err)
		}
	}
}
