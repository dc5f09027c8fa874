package cache_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// benchSizes are those of a small network's step, mostly small.
var benchSizes = []alloc.Bytes{512, 2048, 6912, 147456, 1024, 512, 589824, 4 * alloc.MiB, 256, 65536, 2 * alloc.MiB, 16384, 512, 9 * alloc.MiB, 40, 100352}

// fill leaves a cache with live blocks in callers' hands, and as many free ones
// as said, of mixed sizes and none next to another.
func fill(b *testing.B, c *cache.Cache, live, inactive int) {
	random := rand.New(rand.NewPCG(1, 2))
	var freed []alloc.Ptr
	for i := range live + inactive {
		size := alloc.Bytes(1+random.IntN(16)) * 512
		if i%64 == 0 {
			size = alloc.MiB + alloc.Bytes(1+random.IntN(2000))*512
		}
		p := mustAlloc(b, c, size)
		if i%2 == 0 && len(freed) < inactive {
			freed = append(freed, p)
		}
	}
	for _, p := range freed {
		if err := c.Free(p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCacheAllocFree is an Alloc and a Free that the cache satisfies. The
// driver's pair, through sim, is in BenchmarkDriverAllocFree.
func BenchmarkCacheAllocFree(b *testing.B) {
	for _, load := range []struct{ live, inactive int }{{0, 0}, {1_000_000, 0}, {500_000, 500_000}} {
		b.Run(fmt.Sprintf("live=%d/inactive=%d", load.live, load.inactive), func(b *testing.B) {
			c, _ := newCache(b, sim.Config{Memory: alloc.TiB})
			fill(b, c, load.live, load.inactive)
			pairs(b, c)
		})
	}
}

func BenchmarkDriverAllocFree(b *testing.B) { pairs(b, open(b, sim.Config{})) }

func pairs(b *testing.B, dev alloc.Device) {
	for _, size := range benchSizes { // so that the loop finds all of them cached
		if err := dev.Free(mustAlloc(b, dev, size)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		p, err := dev.Alloc(benchSizes[i%len(benchSizes)])
		if err != nil {
			b.Fatal(err)
		}
		if err := dev.Free(p); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkCacheOneSize is the best case: the same block again and again.
func BenchmarkCacheOneSize(b *testing.B) {
	for _, size := range []alloc.Bytes{alloc.MiB, 64 * alloc.MiB} {
		b.Run(size.String(), func(b *testing.B) {
			c, _ := newCache(b, sim.Config{})
			for b.Loop() {
				p, _ := c.Alloc(size)
				_ = c.Free(p)
			}
		})
	}
}

// BenchmarkCacheChurn frees a random one of a million live blocks and allocates
// another: every record it touches is cold in the processor's caches.
func BenchmarkCacheChurn(b *testing.B) {
	c, _ := newCache(b, sim.Config{Memory: alloc.TiB})
	random := rand.New(rand.NewPCG(3, 4))
	live := make([]alloc.Ptr, 1_000_000)
	size := func() alloc.Bytes { return alloc.Bytes(1 + random.IntN(16*512)) }
	for i := range live {
		live[i] = mustAlloc(b, c, size())
	}
	b.ReportAllocs()
	for b.Loop() {
		i := random.IntN(len(live))
		_ = c.Free(live[i])
		live[i], _ = c.Alloc(size())
	}
}

// BenchmarkCacheStep allocates a step's tensors, then frees them, as a network does.
func BenchmarkCacheStep(b *testing.B) {
	c, _ := newCache(b, sim.Config{})
	var live [16]alloc.Ptr
	b.ReportAllocs()
	for b.Loop() {
		for i, size := range benchSizes {
			live[i], _ = c.Alloc(size)
		}
		for _, p := range live {
			_ = c.Free(p)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(live)), "ns/pair")
}

func BenchmarkCacheParallel(b *testing.B) {
	c, _ := newCache(b, sim.Config{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			p, err := c.Alloc(benchSizes[i%len(benchSizes)])
			if err != nil {
				b.Error(err)
				return
			}
			_ = c.Free(p)
		}
	})
}

// BenchmarkCacheMemory reports the Go memory that a live block costs.
func BenchmarkCacheMemory(b *testing.B) {
	const blocks = 1_000_000
	c, _ := newCache(b, sim.Config{Memory: alloc.TiB})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		c, _ = newCache(b, sim.Config{Memory: alloc.TiB})
		for range blocks {
			_, _ = c.Alloc(512)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/blocks, "bytes/block")
	runtime.KeepAlive(c)
}

// BenchmarkCacheOverCountingDevice is what a replay costs at least, an event.
func BenchmarkCacheOverCountingDevice(b *testing.B) {
	for _, expandable := range []bool{false, true} {
		b.Run(fmt.Sprintf("expandable=%v", expandable), func(b *testing.B) {
			dev := counting.New(64 * alloc.GiB)
			pairs(b, cachetest.NewCache(b, dev, cache.Config{ExpandableSegments: expandable}))
			b.ReportMetric(float64(2*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
