package tracker_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
)

// readers are the ways to look at a tracker. The first looks at nothing, and
// keeps a processor busy as the others do.
var readers = []struct {
	name string
	read func(b *testing.B, tr *tracker.MemTracker)
}{
	{"none", func(*testing.B, *tracker.MemTracker) { spin(10 * time.Millisecond) }},
	{"snapshot", func(_ *testing.B, tr *tracker.MemTracker) { tr.Snapshot() }},
	{"dump", func(b *testing.B, tr *tracker.MemTracker) { check(b, tr.Dump(io.Discard, "benchmark")) }},
	{"leaks", func(_ *testing.B, tr *tracker.MemTracker) { tr.Leaks() }},
	{"pprof", exported(pprof.Write)},
	{"torch", exported(torch.Write)},
	{"trace", exported(trace.Write)},
	{"html", exported(html.Write)},
	{"metrics", scrape},
	{"oom", func(b *testing.B, tr *tracker.MemTracker) {
		if _, err := tr.AllocBytes(2*sim.MaxMemory, tracker.Input); err.Error() == "" {
			b.Fatal("no text")
		}
	}},
}

func exported(write func(io.Writer, export.Record) error) func(*testing.B, *tracker.MemTracker) {
	return func(b *testing.B, tr *tracker.MemTracker) { check(b, write(io.Discard, export.Take(tr))) }
}

func scrape(b *testing.B, tr *tracker.MemTracker) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(tr, prom.Config{}))
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", nil)
	check(b, err)
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(discarding{}, request)
}

// discarding is a ResponseWriter.
type discarding struct{}

func (discarding) Header() http.Header         { return http.Header{} }
func (discarding) Write(p []byte) (int, error) { return len(p), nil }
func (discarding) WriteHeader(int)             {}

func check(b *testing.B, err error) {
	if err != nil {
		b.Error(err)
	}
}

func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

// BenchmarkAllocBesideReaders is an Alloc and its Free with a million live
// buffers, a reader in a loop beside it, and the Go collector running.
// It reports the longest that a pair took, and what one in ten thousand exceeds. With reader=none that is
// what the machine and the collector cost.
func BenchmarkAllocBesideReaders(b *testing.B) {
	const live = 1_000_000
	for _, reader := range readers {
		b.Run("reader="+reader.name, func(b *testing.B) {
			tr := newBench(b, tracker.Config{})
			buffers := fill(b, tr, live)
			var stop atomic.Bool
			var beside sync.WaitGroup
			reads := 0
			beside.Go(func() {
				for ; !stop.Load(); reads++ {
					reader.read(b, tr)
				}
			})
			beside.Go(func() {
				for !stop.Load() {
					runtime.GC()
				}
			})
			waits := make([]time.Duration, 0, b.N)
			shape := alloc.Shape{64, 3, 3, 3}
			b.ResetTimer()
			for range b.N {
				begin := time.Now()
				allocFree(b, tr, shape)
				waits = append(waits, time.Since(begin))
			}
			b.StopTimer()
			stop.Store(true)
			beside.Wait()
			runtime.KeepAlive(buffers)
			slices.Sort(waits)
			b.ReportMetric(waits[len(waits)-1].Seconds()*1e3, "worst-ms")
			b.ReportMetric(waits[len(waits)*9999/10000].Seconds()*1e6, "p99.99-us")
			b.ReportMetric(float64(reads), "reads")
		})
	}
}

// BenchmarkAllocFreeGoroutines is an Alloc and its Free from many goroutines at once,
// and for comparison a map of addresses behind a mutex. It reports the pairs a second of all together,
// the least of one goroutine over the most of one, and the wait that one pair in a thousand
// exceeds.
func BenchmarkAllocFreeGoroutines(b *testing.B) {
	shape := alloc.Shape{64, 3, 3, 3}
	for _, n := range []int{1, 2, 8, 64} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			tr := newBench(b, tracker.Config{})
			together(b, n, func(int) { allocFree(b, tr, shape) })
		})
	}
	for _, n := range []int{1, 2, 8, 64} {
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
