package tracker_test

import (
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// benchFrames is how deep below the benchmark the allocations happen; with the
// frames of the testing package that makes stacks of 24.
const benchFrames = 20

// newBench returns a tracker over a simulated GPU of 1 TiB, without a report.
func newBench(b *testing.B, cfg tracker.Config) *tracker.MemTracker {
	b.Helper()
	if cfg.Device == nil {
		device, err := sim.New(sim.Config{Memory: alloc.TiB})
		if err != nil {
			b.Fatal(err)
		}
		cfg.Device = device
	}
	if cfg.Report == nil {
		cfg.Report = io.Discard
	}
	tr, err := tracker.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { tr.Close() })
	return tr
}

// deep calls f from n frames further down.
//
//go:noinline
func deep(n int, f func()) {
	if n > 0 {
		deep(n-1, f)
		return
	}
	f()
}

// BenchmarkAllocFree is a pair through the cache, the whole stack recorded, the
// history on.
func BenchmarkAllocFree(b *testing.B) {
	tr := newBench(b, tracker.Config{})
	shape := alloc.Shape{64, 3, 3, 3}
	deep(benchFrames, func() {
		b.ReportAllocs()
		for b.Loop() {
			allocFree(b, tr, shape)
		}
	})
}

func allocFree(b *testing.B, tr *tracker.MemTracker, shape alloc.Shape) {
	buf, err := tr.Alloc(shape, alloc.Float32, tracker.Activation)
	if err != nil {
		b.Fatal(err)
	}
	if err := buf.Free(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAllocFreeRandomOrder frees a random one of so many live buffers and allocates another, as a program with a cache of
// its own does. What takes longer with more of them is the processor's memory: to free a buffer it waits for three lines that
// are in no cache, one after the other. The first two are the program's: its pointer, and the Buffer. So the objects alone
// stand beside it: a random one of as many Go objects of a Buffer's size is read and replaced.
func BenchmarkAllocFreeRandomOrder(b *testing.B) {
	for _, live := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprintf("objects/live=%d", live), func(b *testing.B) {
			objects := make([]*object, live)
			for i := range objects {
				objects[i] = new(object)
			}
			random, next := rand.New(rand.NewPCG(1, 2)), 0
			for b.Loop() {
				i := (random.IntN(live) + next) % live // one after the other: each waits for the one before
				next = objects[i].zero
				objects[i] = new(object)
			}
		})
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			tr := newBench(b, tracker.Config{})
			buffers := fill(b, tr, live)
			random := rand.New(rand.NewPCG(1, 2))
			deep(benchFrames, func() {
				for b.Loop() {
					i := random.IntN(live)
					if err := buffers[i].Free(); err != nil {
						b.Fatal(err)
					}
					var err error
					if buffers[i], err = tr.Alloc(alloc.Shape{1 + i%1000, 4}, alloc.Float32, tracker.Parameter); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// object has the size of a Buffer, and a pointer as it has.
type object struct {
	_    *int
	zero int
	_    [unsafe.Sizeof(tracker.Buffer{}) - 2*unsafe.Sizeof(0)]byte
}

var heapSink *tracker.Buffer

// BenchmarkGoHeapProfile is what a Go programmer has today for the Go heap: every allocation recorded with its stack, from the
// same depth. The object is a Buffer, which a pair of Alloc and Free takes of Go's heap too.
func BenchmarkGoHeapProfile(b *testing.B) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	deep(benchFrames, func() {
		b.ReportAllocs()
		for b.Loop() {
			heapSink = new(tracker.Buffer)
		}
	})
}

// BenchmarkTrack is a Track with 100 groups changed since the last, at several
// numbers of live buffers. The file is left out.
func BenchmarkTrack(b *testing.B) {
	for _, live := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			tr := newBench(b, tracker.Config{})
			fill(b, tr, live)
			changing := make([]*tracker.Buffer, 100)
			tr.Track()
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				change(b, tr, changing)
				b.StartTimer()
				tr.Track()
			}
		})
	}
}

// fill makes n live buffers in a thousand groups.
func fill(b *testing.B, tr *tracker.MemTracker, n int) []*tracker.Buffer {
	buffers := make([]*tracker.Buffer, n)
	for i := range buffers {
		var err error
		if buffers[i], err = tr.Alloc(alloc.Shape{1 + i%1000, 4}, alloc.Float32, tracker.Parameter); err != nil {
			b.Fatal(err)
		}
	}
	return buffers
}

// change frees what stands in buffers, or fills them, each in a group of its own.
func change(b *testing.B, tr *tracker.MemTracker, buffers []*tracker.Buffer) {
	for i, buf := range buffers {
		var err error
		if buf != nil {
			buffers[i], err = nil, buf.Free()
		} else {
			buffers[i], err = tr.Alloc(alloc.Shape{1 + i, 8}, alloc.Float32, tracker.Activation)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrackedMemory reports what the tracker itself takes for each of a million
// live buffers: Buffer and ledger, and the same with the cache's records.
func BenchmarkTrackedMemory(b *testing.B) {
	const live = 1_000_000
	for _, test := range []struct {
		name   string
		config tracker.Config
	}{
		{"tracker", tracker.Config{Device: new(bump), NoCache: true}},
		{"tracker+cache", tracker.Config{Device: new(bump)}},
	} {
		b.Run(test.name, func(b *testing.B) {
			for b.Loop() {
				before := heapInUse()
				tr := newBench(b, test.config)
				buffers := fill(b, tr, live)
				after := heapInUse() - 8*live // less this benchmark's own slice
				runtime.KeepAlive(buffers)
				runtime.KeepAlive(tr)
				b.ReportMetric(float64(after-before)/live, "bytes/buffer")
			}
		})
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// bump is a device that keeps nothing of what it gives.
type bump struct{ next alloc.Ptr }

func (d *bump) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p := d.next + 512
	d.next = p + alloc.Ptr((n+511)/512*512)
	return p, nil
}
func (d *bump) Free(alloc.Ptr) error { return nil }
func (d *bump) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{Free: alloc.TiB, Total: alloc.TiB}, nil
}
func (d *bump) Name() string { return "bump" }
func (d *bump) Ordinal() int { return 0 }

// BenchmarkAllocFreeInSection is BenchmarkAllocFree with three sections open in the
// goroutine, each a part of the other.
func BenchmarkAllocFreeInSection(b *testing.B) {
	tr := newBench(b, tracker.Config{})
	shape := alloc.Shape{64, 3, 3, 3}
	for range 3 {
		defer tr.Section("part").End()
	}
	deep(benchFrames, func() {
		b.ReportAllocs()
		for b.Loop() {
			allocFree(b, tr, shape)
		}
	})
}

// BenchmarkAllocFreeBesideSection is BenchmarkAllocFree with a section open in another
// goroutine.
func BenchmarkAllocFreeBesideSection(b *testing.B) {
	tr := newBench(b, tracker.Config{})
	shape := alloc.Shape{64, 3, 3, 3}
	opened := make(chan *tracker.Section)
	go func() { opened <- tr.Section("elsewhere") }()
	defer (<-opened).End()
	deep(benchFrames, func() {
		b.ReportAllocs()
		for b.Loop() {
			allocFree(b, tr, shape)
		}
	})
}

// BenchmarkAllocFreeFindUnreachable is BenchmarkAllocFree with each Buffer watched by
// the collector.
func BenchmarkAllocFreeFindUnreachable(b *testing.B) {
	tr := newBench(b, tracker.Config{FindUnreachable: true})
	shape := alloc.Shape{64, 3, 3, 3}
	deep(benchFrames, func() {
		b.ReportAllocs()
		for b.Loop() {
			allocFree(b, tr, shape)
		}
	})
}

// BenchmarkOutOfMemory is an Alloc that fails, its error made and printed, in a
// ledger with buffers of so many call stacks.
func BenchmarkOutOfMemory(b *testing.B) {
	for _, sites := range []int{1000, 400_000} {
		b.Run(fmt.Sprintf("sites=%d", sites), func(b *testing.B) {
			tr := newBench(b, tracker.Config{MaxStacks: sites + 1})
			allocAtSites(b, tr, sites)
			outOfMemory(b, tr)
		})
	}
}

// BenchmarkOutOfMemoryDump is BenchmarkOutOfMemory with a dump of ten thousand buffers.
func BenchmarkOutOfMemoryDump(b *testing.B) {
	tr := newBench(b, tracker.Config{OOMDir: b.TempDir(), MaxDumps: 1 << 30})
	fill(b, tr, 10_000)
	outOfMemory(b, tr)
}

func outOfMemory(b *testing.B, tr *tracker.MemTracker) {
	b.ReportAllocs()
	for b.Loop() {
		_, err := tr.AllocBytes(2*alloc.TiB, tracker.Input)
		if err.Error() == "" {
			b.Fatal("no text")
		}
	}
}

// allocAtSites makes a live buffer for each of n call stacks: the ways through
// a tree of calls, in which each goes down one of two lines.
func allocAtSites(b *testing.B, tr *tracker.MemTracker, n int) {
	depth := bits.Len(uint(n - 1))
	for i := range n {
		goDown(b, tr, i, depth)
	}
}

//go:noinline
func goDown(b *testing.B, tr *tracker.MemTracker, path, depth int) {
	switch {
	case depth == 0:
		if _, err := tr.Alloc(alloc.Shape{4}, alloc.Float32, tracker.Parameter); err != nil {
			b.Fatal(err)
		}
	case path&1 == 0:
		goDown(b, tr, path>>1, depth-1)
	default:
		goDown(b, tr, path>>1, depth-1)
	}
}
