package cache_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func open(t testing.TB, cfg sim.Config) cachetest.Device {
	t.Helper()
	dev, err := cachetest.NewDevice(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

func newCache(t testing.TB, cfg sim.Config) (*cache.Cache, cachetest.Device) {
	t.Helper()
	dev := open(t, cfg)
	return cachetest.NewCache(t, dev, cache.Config{}), dev
}

func mustAlloc(t testing.TB, dev alloc.Device, n alloc.Bytes) alloc.Ptr {
	t.Helper()
	p, err := dev.Alloc(n)
	require.NoError(t, err)
	return p
}

func TestConformance(t *testing.T) {
	t.Run("Sim", func(t *testing.T) {
		alloctest.Device(t, func(t *testing.T) alloc.Device { return open(t, sim.Config{}) })
	})
	t.Run("SimBacked", func(t *testing.T) {
		alloctest.Device(t, func(t *testing.T) alloc.Device {
			return open(t, sim.Config{Memory: 128 * alloc.MiB, Overhead: -1, Backed: true})
		})
	})
	t.Run("Cache", func(t *testing.T) {
		alloctest.Device(t, func(t *testing.T) alloc.Device {
			c, _ := newCache(t, sim.Config{Memory: 256 * alloc.MiB, Overhead: -1, Backed: true})
			t.Cleanup(func() { cachetest.Invariants(t, c) })
			return c
		})
	})
}

// TestScheme checks both sides of every boundary of PyTorch's scheme.
func TestScheme(t *testing.T) {
	for _, test := range []struct{ request, block, segment alloc.Bytes }{
		{0, 512, 2 * alloc.MiB},
		{1, 512, 2 * alloc.MiB},
		{512, 512, 2 * alloc.MiB},
		{513, 1024, 2 * alloc.MiB},
		{alloc.MiB, alloc.MiB, 2 * alloc.MiB},
		{alloc.MiB + 1, alloc.MiB + 512, 20 * alloc.MiB},
		{10*alloc.MiB - 512, 10*alloc.MiB - 512, 20 * alloc.MiB},
		{10*alloc.MiB - 511, 10 * alloc.MiB, 10 * alloc.MiB},
		{10 * alloc.MiB, 10 * alloc.MiB, 10 * alloc.MiB},
		{10*alloc.MiB + 1, 10*alloc.MiB + 512, 12 * alloc.MiB},
		{11*alloc.MiB - 512, 11*alloc.MiB - 512, 12 * alloc.MiB},
		{11 * alloc.MiB, 12 * alloc.MiB, 12 * alloc.MiB}, // exactly 1 MiB remains: not split
		{100*alloc.MiB + 1, 100*alloc.MiB + 512, 102 * alloc.MiB},
	} {
		c, _ := newCache(t, sim.Config{})
		_, allocated, err := c.AllocOn(test.request, 0)
		require.NoError(t, err)
		assert.Equal(t, test.block, allocated, "block of %d", int64(test.request))
		assert.Equal(t, test.segment, c.Stats().Reserved.Bytes.Current, "segment of %d", int64(test.request))
		cachetest.Invariants(t, c)
	}
}

func TestPoolsShareNoSegment(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	mustAlloc(t, c, 2*alloc.MiB) // leaves 18 MiB of its segment
	mustAlloc(t, c, alloc.MiB)
	assert.Equal(t, 2, dev.Calls("Alloc"))
	var pools []string
	for segment := range c.Segments() {
		pools = append(pools, segment.Pool)
	}
	assert.Equal(t, []string{"large", "small"}, pools)
}

func TestBestFit(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	sizes := []alloc.Bytes{40 * alloc.MiB, 20 * alloc.MiB, 30 * alloc.MiB}
	at := make(map[alloc.Bytes]alloc.Ptr)
	for _, size := range sizes {
		at[size] = mustAlloc(t, c, size)
	}
	for _, size := range sizes {
		require.NoError(t, c.Free(at[size]))
	}
	assert.Equal(t, at[30*alloc.MiB], mustAlloc(t, c, 25*alloc.MiB))
	assert.Equal(t, at[20*alloc.MiB], mustAlloc(t, c, 20*alloc.MiB))
	assert.Equal(t, at[40*alloc.MiB], mustAlloc(t, c, 20*alloc.MiB))
	assert.Equal(t, 3, dev.Calls("Alloc"))
}

func TestFreeErrorsChangeNothing(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	p, q, live := mustAlloc(t, c, 1000), mustAlloc(t, c, 1000), mustAlloc(t, c, 1000)
	require.NoError(t, c.Free(p))
	require.NoError(t, c.Free(q)) // now a part of p's block
	before := c.Stats()
	for name, p := range map[string]alloc.Ptr{"freed": p, "freed and joined": q} {
		assert.ErrorIs(t, c.Free(p), alloc.ErrDoubleFree, name)
	}
	for name, p := range map[string]alloc.Ptr{"inside": live + 512, "before all": 1, "behind all": 1 << 60, "none": 0} {
		assert.ErrorIs(t, c.Free(p), alloc.ErrUnknownPtr, name)
	}
	assert.Equal(t, before, c.Stats())
	cachetest.Invariants(t, c)
	assert.EqualError(t, c.Free(1), "free 0x1 on Simulated GPU 0: not an address of this allocator")
}

func TestTrimKeepsWhatTheDriverRefuses(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	var every []alloc.Ptr
	for range 3 {
		every = append(every, mustAlloc(t, c, 20*alloc.MiB))
	}
	used := mustAlloc(t, c, alloc.MiB)
	for _, p := range every {
		require.NoError(t, c.Free(p))
	}
	before := c.Stats()
	dev.Inject(sim.Fault{Call: "Free", Nth: 2})
	given, err := c.Trim()
	assert.Equal(t, 40*alloc.MiB, given)
	assert.ErrorIs(t, err, sim.ErrInjected)
	assert.ErrorContains(t, err, every[1].String())
	cachetest.Invariants(t, c)
	stats := c.Stats()
	assert.Equal(t, 22*alloc.MiB, stats.Reserved.Bytes.Current)
	assert.Equal(t, before.Reserved.Bytes.Total, stats.Reserved.Bytes.Total, "a refusal is no rise")

	assert.Equal(t, every[1], mustAlloc(t, c, 20*alloc.MiB), "what stays is used")
	require.NoError(t, c.Free(every[1]))
	given, err = c.Trim()
	assert.NoError(t, err)
	assert.Equal(t, 20*alloc.MiB, given)
	require.NoError(t, c.Free(used))
	given, err = c.Trim()
	assert.NoError(t, err)
	assert.Equal(t, 2*alloc.MiB, given)
	n, _ := dev.Live()
	assert.Zero(t, n)
}

func TestOutOfMemoryTrimsAndRetries(t *testing.T) {
	c, dev := newCache(t, sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
	a := mustAlloc(t, c, 60*alloc.MiB)
	require.NoError(t, c.Free(a))
	b := mustAlloc(t, c, 80*alloc.MiB) // needs a's segment back
	stats := c.Stats()
	assert.EqualValues(t, 1, stats.Retries)
	assert.EqualValues(t, 0, stats.OOMs)
	assert.Equal(t, 80*alloc.MiB, stats.Reserved.Bytes.Current)
	assert.Equal(t, 3, dev.Calls("Alloc"))

	require.NoError(t, c.Free(b))
	mustAlloc(t, c, 60*alloc.MiB) // from b: 20 MiB remain
	_, err := c.Alloc(30*alloc.MiB - 1)
	var oom *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.NotNil(t, oom.Err)
	assert.ErrorIs(t, oom.Err, alloc.ErrOutOfMemory, "the driver's own")
	oom.Err = nil
	assert.Equal(t, alloc.OutOfMemoryError{
		Device: "Simulated GPU 0", Requested: 30*alloc.MiB - 1, Free: 20 * alloc.MiB, Total: 100 * alloc.MiB,
		Reserved: 80 * alloc.MiB, Allocated: 60 * alloc.MiB, LargestInactive: 20 * alloc.MiB,
	}, *oom)
	stats = c.Stats()
	assert.EqualValues(t, 2, stats.Retries)
	assert.EqualValues(t, 1, stats.OOMs)
	cachetest.Invariants(t, c)
}

// fullDevice is out of memory from now on, and has something happen first.
type fullDevice struct {
	alloc.Device
	meanwhile func()
}

func (d *fullDevice) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if d.meanwhile == nil {
		return d.Device.Alloc(n)
	}
	d.meanwhile()
	return 0, &alloc.OutOfMemoryError{Device: "full 0", Requested: n}
}

// TestOutOfMemoryTakesWhatIsFreedMeanwhile frees a block that fits while the driver is asked. Its segment is in use, so that
// it cannot go back.
func TestOutOfMemoryTakesWhatIsFreedMeanwhile(t *testing.T) {
	dev := &fullDevice{Device: open(t, sim.Config{})}
	c := cachetest.NewCache(t, dev, cache.Config{})
	a, _ := mustAlloc(t, c, 9*alloc.MiB), mustAlloc(t, c, 9*alloc.MiB)
	dev.meanwhile = sync.OnceFunc(func() { assert.NoError(t, c.Free(a)) })
	assert.Equal(t, a, mustAlloc(t, c, 9*alloc.MiB))
	stats := c.Stats()
	assert.EqualValues(t, 1, stats.Retries)
	assert.Zero(t, stats.OOMs)
	cachetest.Invariants(t, c)
}

func TestOutOfMemoryWithoutMemInfo(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	dev.Inject(sim.Fault{Call: "MemInfo"})
	_, err := c.Alloc(alloc.TiB)
	assert.EqualError(t, err, "alloc 1.0 TiB on Simulated GPU 0: out of device memory: reserved 0 B, allocated 0 B, largest inactive block 0 B")
}

func TestHugeRequestsDoNotAskTheDriver(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	_, err := c.Alloc(math.MaxInt64)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Zero(t, dev.Calls("Alloc"))
	_, err = c.Alloc(math.MaxInt64 - 2*alloc.MiB)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, 2, dev.Calls("Alloc"))
}

func TestDriverErrorChangesNothing(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	dev.Inject(sim.Fault{Call: "Alloc"})
	_, err := c.Alloc(3 * alloc.MiB)
	assert.EqualError(t, err, "alloc 3.0 MiB on Simulated GPU 0: new segment of 20.0 MiB: Alloc on Simulated GPU 0: injected fault")
	assert.Equal(t, alloc.Stats{}, c.Stats())
}

func TestRetryReportsWhatTrimCouldNot(t *testing.T) {
	c, dev := newCache(t, sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
	require.NoError(t, c.Free(mustAlloc(t, c, 60*alloc.MiB)))
	dev.Inject(sim.Fault{Call: "Free"})
	_, err := c.Alloc(80 * alloc.MiB)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.ErrorIs(t, err, sim.ErrInjected)
	cachetest.Invariants(t, c)
}

func TestClose(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	used := mustAlloc(t, c, 3*alloc.MiB)
	require.NoError(t, c.Free(mustAlloc(t, c, 40*alloc.MiB)))
	err := c.Close()
	require.EqualError(t, err, "close cache on Simulated GPU 0: blocks still in use: 1, of 3.0 MiB together: free them first")
	n, held := dev.Live()
	assert.Equal(t, 1, n, "the segment in use is left alone")
	assert.Equal(t, 20*alloc.MiB, held)
	before := c.Stats()

	_, allocErr := c.Alloc(1)
	_, hugeErr := c.Alloc(math.MaxInt64)
	_, emptyErr := c.Trim()
	for name, err := range map[string]error{
		"Alloc": allocErr, "Alloc of what is cached": hugeErr, "Free": c.Free(used), "Trim": emptyErr, "Close": c.Close(),
	} {
		assert.ErrorIs(t, err, alloc.ErrClosed, name)
	}
	assert.Equal(t, before, c.Stats())
	cachetest.Invariants(t, c)
	_, err = dev.Alloc(1)
	assert.NoError(t, err, "the device stays open")
}

func TestCloseGivesAllBack(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	require.NoError(t, c.Free(mustAlloc(t, c, 0)))
	require.NoError(t, c.Close())
	n, _ := dev.Live()
	assert.Zero(t, n)
}

// badDevice gives addresses from a list.
type badDevice struct {
	cachetest.Device
	ptrs []alloc.Ptr
}

func (d *badDevice) Alloc(alloc.Bytes) (alloc.Ptr, error) {
	p := d.ptrs[0]
	d.ptrs = d.ptrs[1:]
	return p, nil
}

func TestBrokenDriver(t *testing.T) {
	const start = 100 * alloc.Ptr(alloc.MiB)
	for name, bad := range map[string]alloc.Ptr{
		"no address":      0,
		"same address":    start,
		"overlaps front":  start - alloc.Ptr(alloc.MiB),
		"overlaps back":   start + alloc.Ptr(alloc.MiB),
		"wraps around":    alloc.Ptr(1<<64 - 1),
		"overlaps by one": start + alloc.Ptr(2*alloc.MiB) - 1,
	} {
		t.Run(name, func(t *testing.T) {
			dev := &badDevice{open(t, sim.Config{}), []alloc.Ptr{start, bad, start + alloc.Ptr(2*alloc.MiB)}}
			c := cachetest.NewCache(t, dev, cache.Config{})
			mustAlloc(t, c, alloc.MiB)
			mustAlloc(t, c, alloc.MiB)
			before := c.Stats()
			_, err := c.Alloc(alloc.MiB)
			assert.ErrorIs(t, err, alloc.ErrBrokenDriver)
			assert.Equal(t, before, c.Stats())
			mustAlloc(t, c, alloc.MiB)
		})
	}
}

func TestSegmentEvents(t *testing.T) {
	var events []string
	c, _ := newCache(t, sim.Config{Memory: 100 * alloc.MiB, Overhead: -1})
	c.Locked().Notify(func(e cachelock.Event) {
		events = append(events, string(e.Action)+" "+e.Size.String())
		assert.Equal(t, e.Action == cachelock.SegmentAlloc || e.Action == cachelock.SegmentFree, e.Ptr != 0)
	}, nil)
	require.NoError(t, c.Free(mustAlloc(t, c, 60*alloc.MiB)))
	mustAlloc(t, c, 80*alloc.MiB)
	_, err := c.Alloc(81*alloc.MiB - 1)
	require.Error(t, err)
	assert.Equal(t, []string{
		"segment_alloc 60.0 MiB",
		"retry 80.0 MiB", "segment_free 60.0 MiB", "segment_alloc 80.0 MiB",
		"retry 82.0 MiB", "oom 81.0 MiB",
	}, events)
}

func TestResetPeak(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	p := mustAlloc(t, c, 100)
	require.NoError(t, c.Free(mustAlloc(t, c, 1000)))
	stats := c.Stats()
	assert.Equal(t, alloc.Gauge[alloc.Bytes]{Current: 100, Peak: 1100, Total: 1100}, stats.Requested.Bytes)
	assert.Equal(t, alloc.Gauge[alloc.Bytes]{Current: 512, Peak: 1536, Total: 1536}, stats.Allocated.Bytes)
	assert.Equal(t, alloc.Gauge[int64]{Current: 1, Peak: 2, Total: 2}, stats.Allocated.Count)
	c.ResetPeak()
	stats = c.Stats()
	assert.Equal(t, alloc.Gauge[alloc.Bytes]{Current: 100, Peak: 100, Total: 1100}, stats.Requested.Bytes)
	assert.Equal(t, alloc.Gauge[int64]{Current: 1, Peak: 1, Total: 2}, stats.Allocated.Count)
	require.NoError(t, c.Free(p))
	cachetest.Invariants(t, c)
}

func TestString(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	mustAlloc(t, c, 3*alloc.MiB)
	assert.Equal(t, "cache of Simulated GPU 0: 3.0 MiB of 20.0 MiB allocated", c.String())
	assert.Equal(t, "no cache: New makes one", new(cache.Cache).String())
}

// endless gives any amount again and again.
type endless struct{ alloc.Device }

func (endless) Alloc(alloc.Bytes) (alloc.Ptr, error) { return 512, nil }
func (endless) Free(alloc.Ptr) error                 { return nil }

func TestTotalsStopAtTheLargestAmount(t *testing.T) {
	c := cachetest.NewCache(t, endless{open(t, sim.Config{})}, cache.Config{})
	for range 4 {
		require.NoError(t, c.Free(mustAlloc(t, c, math.MaxInt64/2)))
	}
	stats := c.Stats()
	assert.Equal(t, alloc.Bytes(math.MaxInt64), stats.Requested.Bytes.Total)
	assert.Equal(t, alloc.Bytes(math.MaxInt64), stats.Allocated.Bytes.Total)
	assert.EqualValues(t, 4, stats.Requested.Count.Total)
}

func TestAs(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	copier, ok := alloc.As[alloc.Copier](c)
	assert.True(t, ok)
	assert.Same(t, dev, copier)
	sized, ok := alloc.As[alloc.StreamAllocator](c)
	assert.True(t, ok)
	assert.Same(t, c, sized)
	_, ok = alloc.As[interface{ Explode() }](c)
	assert.False(t, ok)
	_, ok = alloc.As[alloc.Copier](nil)
	assert.False(t, ok)
	assert.Equal(t, "Simulated GPU", c.Name())
	assert.Equal(t, 0, c.Ordinal())
}

// TestHitsDoNotWaitForTheDriver holds a driver call up and allocates meanwhile.
func TestHitsDoNotWaitForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, sim.Config{})
		small := mustAlloc(t, c, 512)
		dev.SetLatency(time.Hour)
		start := time.Now()
		var miss sync.WaitGroup
		miss.Go(func() { mustAlloc(t, c, 5*alloc.MiB) })
		synctest.Wait() // it is in the driver
		require.NoError(t, c.Free(small))
		mustAlloc(t, c, 1024)
		_ = c.Stats()
		assert.Zero(t, time.Since(start))
		miss.Wait()
		assert.Equal(t, time.Hour, time.Since(start))
	})
}

// TestMissesShareASegment has misses at one time that one segment serves.
func TestMissesShareASegment(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	dev.SetLatency(time.Millisecond)
	var misses sync.WaitGroup
	for range 4 {
		misses.Go(func() { mustAlloc(t, c, 5*alloc.MiB) })
	}
	misses.Wait()
	assert.Equal(t, 1, dev.Calls("Alloc"))
}

func TestSegmentsWalksACopy(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	for range 3 {
		mustAlloc(t, c, 20*alloc.MiB)
	}
	seen := 0
	for segment := range c.Segments() {
		for _, block := range segment.Blocks {
			seen++
			assert.Equal(t, alloc.Allocated, block.State)
			require.NoError(t, c.Free(block.Ptr))
		}
		_, err := c.Trim()
		require.NoError(t, err)
	}
	assert.Equal(t, 3, seen)
	for range c.Segments() {
		t.Error("all segments are gone")
	}
}

func TestConcurrentTotals(t *testing.T) {
	const workers, rounds = 8, 500
	c, dev := newCache(t, sim.Config{Memory: 4 * alloc.GiB})
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range rounds {
				p, err := c.Alloc(alloc.Bytes(1 + (w*rounds+i)%4096*1024))
				if errors.Is(err, alloc.ErrOutOfMemory) || !assert.NoError(t, err) {
					continue
				}
				if i%50 == 0 {
					_, err := c.Trim()
					assert.NoError(t, err)
				}
				assert.NoError(t, c.Free(p))
			}
		})
	}
	group.Wait()
	cachetest.Invariants(t, c)
	want := alloc.Bytes(0)
	for i := range workers * rounds {
		want += alloc.Bytes(1 + i%4096*1024)
	}
	stats := c.Stats()
	assert.Equal(t, want, stats.Requested.Bytes.Total)
	assert.EqualValues(t, workers*rounds, stats.Allocated.Count.Total)
	assert.Zero(t, stats.Allocated.Count.Current)
	require.NoError(t, c.Close())
	n, _ := dev.Live()
	assert.Zero(t, n)
}

func TestSteadyStateAllocatesNoGoMemory(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	pair := func() {
		small, _ := c.Alloc(1000)
		large, _ := c.Alloc(3 * alloc.MiB)
		_ = c.Free(small)
		_ = c.Free(large)
	}
	pair()
	assert.Zero(t, testing.AllocsPerRun(100, pair))
}
