package export_test

import (
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// program makes buffers, of 8 shapes and every kind, from 32 call stacks.
type program struct {
	t  testing.TB
	tr *tracker.MemTracker
}

func newProgram(t testing.TB, maxEvents int) program {
	device, err := sim.New(sim.Config{Memory: 256 * alloc.GiB})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard, MaxEvents: maxEvents})
	require.NoError(t, err)
	return program{t, tr}
}

// alloc makes the i-th buffer, at a stack of its own depth.
func (p program) alloc(i, depth int) *tracker.Buffer {
	if depth > 0 {
		return p.alloc(i, depth-1)
	}
	b, err := p.tr.Alloc(alloc.Shape{64 + i%8, 4}, alloc.Float32, mem.Kinds()[i/8%len(mem.Kinds())])
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// run leaves so many buffers live and so many events in the history, half of
// which are frees.
func (p program) run(buffers, events int) {
	for i := range buffers {
		p.alloc(i, i%32)
	}
	for i := range events / 2 {
		if i%10_000 == 0 {
			p.tr.Track()
		}
		if err := p.alloc(i, i%32).Free(); err != nil {
			p.t.Fatal(err)
		}
	}
}

const million = 1_000_000

var large = sync.OnceValue(func() *snapshot.Dump {
	p := newProgram(new(testing.B), million)
	p.run(million, million)
	return p.tr.Dump()
})

// counter counts what is written.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

var exporters = []struct {
	name  string
	write func(io.Writer, *snapshot.Dump) error
}{
	{"pprof", pprof.Write},
	{"torch", torch.Write},
	{"trace", trace.Write},
	{"html", html.Write},
	{"snapshot", func(w io.Writer, r *snapshot.Dump) error { return r.Snapshot.WriteJSON(w) }},
	{"dump", func(w io.Writer, r *snapshot.Dump) error { return r.WriteJSON(w) }},
}

// BenchmarkExport writes a million live buffers and a million events.
func BenchmarkExport(b *testing.B) {
	for _, e := range exporters {
		b.Run(e.name, func(b *testing.B) {
			r := large()
			var c counter
			b.ReportAllocs()
			for b.Loop() {
				c.n = 0
				if err := e.write(&c, r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.n)/(1<<20), "MiB-written")
		})
	}
}

// watcher notes the largest heap between the writes.
type watcher struct {
	writes  int
	highest uint64
}

func (w *watcher) Write(b []byte) (int, error) {
	if w.writes++; w.writes%64 == 1 {
		w.highest = max(w.highest, liveHeap())
	}
	return len(b), nil
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestExportersStream holds that what an exporter keeps while it writes does not
// grow with the events, and by at most 128 bytes with each live buffer.
func TestExportersStream(t *testing.T) {
	const buffers, events = 20_000, 200_000
	p := newProgram(t, events)
	defer p.tr.Close()
	p.run(buffers, events)
	r := p.tr.Dump()
	for _, e := range exporters {
		t.Run(e.name, func(t *testing.T) {
			var w watcher
			before := liveHeap()
			require.NoError(t, e.write(&w, r))
			grown := int64(w.highest) - int64(before)
			require.Less(t, grown, int64(128*buffers+2<<20))
		})
	}
	runtime.KeepAlive(r)
}
