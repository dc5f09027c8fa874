package live_test

import (
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
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// readers are the ways to look at a tracker. The first looks at nothing, and
// keeps a processor busy as the others do.
var readers = []struct {
	name string
	read func(b *testing.B, tr *tracker.MemTracker)
}{
	{"none", func(*testing.B, *tracker.MemTracker) { spin(10 * time.Millisecond) }},
	{"snapshot", func(_ *testing.B, tr *tracker.MemTracker) { tr.Snapshot() }},
	{"dump", func(b *testing.B, tr *tracker.MemTracker) { check(b, tr.Dump().WriteJSON(io.Discard)) }},
	{"leaks", func(_ *testing.B, tr *tracker.MemTracker) { tr.Leaks() }},
	{"pprof", exported(pprof.Write)},
	{"torch", exported(torch.Write)},
	{"trace", exported(trace.Write)},
	{"html", exported(html.Write)},
	{"metrics", scrape},
	{"suspects", func(_ *testing.B, tr *tracker.MemTracker) { tr.Suspects() }},
	{"profile", func(_ *testing.B, tr *tracker.MemTracker) { tr.Profile() }},
	{"track", func(_ *testing.B, tr *tracker.MemTracker) { tr.Track() }},
	{"oom", func(b *testing.B, tr *tracker.MemTracker) {
		if _, err := tr.Alloc(alloc.Shape{1 << 20, 1 << 21}, alloc.Uint8, tracker.Input); err.Error() == "" {
			b.Fatal("no text")
		}
	}},
}

func exported(write func(io.Writer, *snapshot.Dump) error) func(*testing.B, *tracker.MemTracker) {
	return func(b *testing.B, tr *tracker.MemTracker) { check(b, write(io.Discard, tr.Dump())) }
}

func scrape(b *testing.B, tr *tracker.MemTracker) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(tr.LightSnapshot, prom.Config{}))
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
// what the machine and the collector cost: on few processors mostly the turns of the scheduler.
//
// What the readers themselves can do to a pair is to hold the lock. With the tag lockprobe, on Linux,
// the benchmark reports the longest hold, by readers and pairs alike, in time of its processor: that does
// not depend on what else runs on the machine.
//
//	go test -tags lockprobe -bench BesideReaders ./tracker/live
func BenchmarkAllocBesideReaders(b *testing.B) {
	const live = 1_000_000
	for _, reader := range readers {
		b.Run("reader="+reader.name, func(b *testing.B) {
			device, err := sim.New(sim.Config{Memory: alloc.TiB})
			require.NoError(b, err)
			tr := exporttest.New(b, tracker.Config{Device: device, Clock: time.Now})
			for i := range live {
				_, err := tr.Alloc(alloc.Shape{1 + i%1000, 4}, alloc.Float32, tracker.Parameter)
				require.NoError(b, err)
			}
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
			lock := tr.Device().(*cache.Cache).Locked().Mutex()
			lock.Forget()
			b.ResetTimer()
			for range b.N {
				begin := time.Now()
				if buf, err := tr.Alloc(shape, alloc.Float32, tracker.Activation); err != nil || buf.Free() != nil {
					b.Fatal(err)
				}
				waits = append(waits, time.Since(begin))
			}
			b.StopTimer()
			longest, known := lock.Longest()
			stop.Store(true)
			beside.Wait()
			slices.Sort(waits)
			b.ReportMetric(waits[len(waits)-1].Seconds()*1e3, "worst-ms")
			b.ReportMetric(waits[len(waits)*9999/10000].Seconds()*1e6, "p99.99-us")
			b.ReportMetric(float64(reads), "reads")
			if known {
				b.ReportMetric(longest.Time.Seconds()*1e3, "held-ms")
				b.Log("the longest hold: ", longest)
			}
		})
	}
}
