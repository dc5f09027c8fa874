package tracker_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// BenchmarkAllocFreeGoroutines is an Alloc and its Free from many goroutines at once.
// It reports the pairs a second of all together, the least of one goroutine over the most of
// one, and the wait that one pair in a thousand exceeds. For comparison there are a map of addresses
// behind a mutex, and a map for each goroutine, with nothing to wait for: so fair is Go's
// scheduler by itself, on that machine, in that second.
func BenchmarkAllocFreeGoroutines(b *testing.B) {
	numbers := []int{1, 2, 8, 64}
	shape := alloc.Shape{64, 3, 3, 3}
	for _, n := range numbers {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			tr := newBench(b, tracker.Config{})
			together(b, n, func(int) { allocFree(b, tr, shape) })
		})
	}
	for _, n := range numbers {
		b.Run(fmt.Sprintf("mutex+map/n=%d", n), func(b *testing.B) {
			var mu sync.Mutex
			live := make(map[int]int)
			together(b, n, func(worker int) {
				mu.Lock()
				live[worker] = 1
				mu.Unlock()
				mu.Lock()
				delete(live, worker)
				mu.Unlock()
			})
		})
	}
	for _, n := range numbers {
		b.Run(fmt.Sprintf("map each/n=%d", n), func(b *testing.B) {
			live := make([]map[int]int, n)
			for i := range live {
				live[i] = make(map[int]int)
			}
			together(b, n, func(worker int) {
				live[worker][worker] = 1
				delete(live[worker], worker)
			})
		})
	}
}

// together runs pairs in n goroutines, a second for each round of the benchmark.
func together(b *testing.B, n int, pair func(worker int)) {
	const sampled = 64 // one pair in so many is timed
	type worker struct {
		pairs int64
		waits []time.Duration
		_     [64]byte // each on cache lines of its own
	}
	workers := make([]worker, n)
	var stop atomic.Bool
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range workers {
		wg.Go(func() {
			w := &workers[i]
			for !stop.Load() {
				if w.pairs%sampled == 0 {
					from := time.Now()
					pair(i)
					w.waits = append(w.waits, time.Since(from))
				} else {
					pair(i)
				}
				w.pairs++
			}
		})
	}
	for b.Loop() {
		time.Sleep(time.Second)
	}
	stop.Store(true)
	wg.Wait()
	elapsed := time.Since(begin)
	var sum int64
	least, most := workers[0].pairs, int64(0)
	var waits []time.Duration
	for i := range workers {
		w := &workers[i]
		sum += w.pairs
		least, most = min(least, w.pairs), max(most, w.pairs)
		waits = append(waits, w.waits...)
	}
	slices.Sort(waits)
	b.ReportMetric(float64(sum)/elapsed.Seconds(), "pairs/s")
	b.ReportMetric(float64(least)/float64(most), "fairness")
	b.ReportMetric(waits[len(waits)*999/1000].Seconds()*1e6, "p99.9-us")
	b.ReportMetric(0, "ns/op")
}
