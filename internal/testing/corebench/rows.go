//go:build unix

package main

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// frames is how many calls are on a stack.
const frames = 24

func rows() []row {
	return []row{
		{"a pair of Alloc and Free through the cache, 24 frames, history on", pair},
		{"the same with a shape that was never seen", newShape},
		{"a call stack of 24 frames that was never seen", newStack},
		{"a random one of 1,000,000 live, of 1,000 shapes, is freed and allocated again", randomOrder},
		{"a pair beside a driver that is always in a call of 20 ms, ns by the clock", besideDriver},
		{"pairs of many goroutines, ns by the clock for each of all pairs", goroutines},
		{"the tracker's memory, in bytes for each of 1,000,000 live buffers", memory},
	}
}

func newTracker(cfg tracker.Config) *tracker.MemTracker {
	if cfg.Device == nil {
		cfg.Device = must(sim.New(sim.Config{Memory: alloc.TiB}))
	}
	cfg.Report, cfg.Logger = io.Discard, slog.New(slog.DiscardHandler)
	return must(tracker.New(cfg))
}

func closing(tr *tracker.MemTracker) func() { return func() { _ = tr.Close() } }

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// depth is how many calls there are around the caller of the caller.
func depth() int {
	var pcs [64]uintptr
	return runtime.Callers(3, pcs[:])
}

// deep calls f so that a call in it has a stack of that many frames.
func deep(f func()) { down(frames-depth()-3, f) }

//go:noinline
func down(n int, f func()) {
	if n > 0 {
		down(n-1, f)
		return
	}
	f()
}

// fork goes so many calls down, each time by one of two lines.
//
//go:noinline
func fork(way, left int, f func()) {
	switch {
	case left == 0:
		f()
	case way&1 == 0:
		fork(way>>1, left-1, f)
	default:
		fork(way>>1, left-1, f)
	}
}

var known = alloc.Shape{64, 3, 3, 3}

func allocFree(tr *tracker.MemTracker, shape alloc.Shape) {
	check(must(tr.Alloc(shape, alloc.Float32, tracker.Activation)).Free())
}

// knownShape is a pair that repeats.
func knownShape(tr *tracker.MemTracker) *way {
	return &way{name: "a shape and a stack that repeat", end: closing(tr), run: func(n int) {
		deep(func() {
			for range n {
				allocFree(tr, known)
			}
		})
	}}
}

var heapSink *tracker.Buffer

func pair() ([]*way, string) {
	profiled := &way{name: "Go's heap profiler at rate 1: an object as large as a Buffer", run: func(n int) {
		defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
		runtime.MemProfileRate = 1
		deep(func() {
			for range n {
				heapSink = new(tracker.Buffer)
			}
		})
		runtime.KeepAlive(heapSink)
	}}
	ways := []*way{knownShape(newTracker(tracker.Config{})), profiled}
	other, note := heaptrack()
	if other != nil {
		ways = append(ways, other)
	}
	return ways, note
}

// shapes returns shapes that differ from all before.
func shapes() func() alloc.Shape {
	n := 0
	return func() alloc.Shape {
		n++
		return alloc.Shape{1 + n>>10, 1 + n&1023}
	}
}

func newShape() ([]*way, string) {
	tr, next := newTracker(tracker.Config{}), shapes()
	return []*way{knownShape(newTracker(tracker.Config{})), {name: "a new shape", end: closing(tr), run: func(n int) {
		deep(func() {
			for range n {
				allocFree(tr, next())
			}
		})
	}}}, ""
}

// newStack goes down a tree of calls, a new way each time. Tables are new in each round: they keep 65,536 stacks by default.
func newStack() ([]*way, string) {
	each := func(name string, begin func() (f, end func())) *way {
		return &way{name: name, n: 50_000, value: func(n int) float64 {
			f, end := begin()
			defer end()
			runtime.GC()
			left := frames - depth() - 2
			before := processorTime()
			for i := range n {
				fork(i, left, f)
			}
			return perWork(processorTime()-before, n)
		}}
	}
	return []*way{
		each("runtime.Callers", func() (f, end func()) {
			var pcs [callstack.DefaultDepth]uintptr
			return func() { runtime.Callers(1, pcs[:]) }, func() {}
		}),
		each("the tracker's capture of a new stack", func() (f, end func()) {
			table := callstack.NewTable(callstack.Config{})
			return func() { table.Capture(0) }, func() { runtime.KeepAlive(table) }
		}),
		each("a pair of Alloc and Free with a new stack", func() (f, end func()) {
			tr := newTracker(tracker.Config{})
			return func() { allocFree(tr, known) }, closing(tr)
		}),
	}, ""
}

// object has the size of a Buffer, and a pointer as it has.
type object struct {
	_    *int
	zero int
	_    [unsafe.Sizeof(tracker.Buffer{}) - 2*unsafe.Sizeof(0)]byte
}

func randomOrder() ([]*way, string) {
	const live, n = 1_000_000, 300_000
	objects := make([]*object, live)
	for i := range objects {
		objects[i] = new(object)
	}
	random := rand.New(rand.NewPCG(1, 2))
	plain := &way{name: "Go objects as large as a Buffer", n: n, run: func(n int) {
		next := 0
		for range n {
			i := (random.IntN(live) + next) % live // one after the other: each waits for the one before
			next = objects[i].zero
			objects[i] = new(object)
		}
	}}
	tr := newTracker(tracker.Config{})
	buffers := make([]*tracker.Buffer, live)
	fill(tr, buffers)
	ours := &way{name: "Buffers", n: n, end: closing(tr), run: func(n int) {
		deep(func() {
			for range n {
				i := random.IntN(live)
				check(buffers[i].Free())
				buffers[i] = must(tr.Alloc(shapeOf(i), alloc.Float32, tracker.Parameter))
			}
		})
	}}
	return []*way{plain, ours}, ""
}

func shapeOf(i int) alloc.Shape { return alloc.Shape{1 + i%1000, 4} }

func fill(tr *tracker.MemTracker, buffers []*tracker.Buffer) {
	for i := range buffers {
		buffers[i] = must(tr.Alloc(shapeOf(i), alloc.Float32, tracker.Parameter))
	}
}

// slow is a device whose calls take 20 ms by the clock.
type slow struct{ alloc.Device }

func (d slow) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	time.Sleep(20 * time.Millisecond)
	return d.Device.Alloc(n)
}

func (d slow) Free(p alloc.Ptr) error {
	time.Sleep(20 * time.Millisecond)
	return d.Device.Free(p)
}

func besideDriver() ([]*way, string) {
	const most = 200_000 // shapes, of which the largest is still one of the small pool: the driver goroutine empties the other
	each := func(name string, work func(tr *tracker.MemTracker, next func() alloc.Shape, i int)) *way {
		return &way{name: name, value: func(int) float64 {
			next := shapes()
			tr := newTracker(tracker.Config{Device: slow{must(sim.New(sim.Config{Memory: alloc.TiB}))}})
			defer closing(tr)()
			allocFree(tr, known)
			var stop atomic.Bool
			var driver sync.WaitGroup
			driver.Go(func() {
				for !stop.Load() {
					check(must(tr.AllocBytes(30*alloc.MiB, tracker.Input)).Free())
					_ = must(tr.ClearCache())
				}
			})
			keep := must(tr.Alloc(known, alloc.Float32, tracker.Input)) // so that its segment stays
			begin, n := time.Now(), 0
			for ; n < most && time.Since(begin) < roundTime; n++ {
				work(tr, next, n)
			}
			took := time.Since(begin)
			stop.Store(true)
			driver.Wait()
			check(keep.Free())
			return perWork(took, n)
		}}
	}
	return []*way{
		each("a shape and a stack that repeat", func(tr *tracker.MemTracker, _ func() alloc.Shape, _ int) { allocFree(tr, known) }),
		each("a new shape", func(tr *tracker.MemTracker, next func() alloc.Shape, _ int) { allocFree(tr, next()) }),
		each("a new stack", func(tr *tracker.MemTracker, _ func() alloc.Shape, i int) {
			fork(i, 20, func() { allocFree(tr, known) })
		}),
	}, ""
}

func goroutines() ([]*way, string) {
	each := func(name string, workers int) *way {
		return &way{name: name, value: func(int) float64 {
			tr := newTracker(tracker.Config{})
			defer closing(tr)()
			var stop atomic.Bool
			var pairs atomic.Int64
			var all sync.WaitGroup
			begin := time.Now()
			for range workers {
				all.Go(func() {
					n := int64(0)
					for ; !stop.Load(); n++ {
						allocFree(tr, known)
					}
					pairs.Add(n)
				})
			}
			time.Sleep(2 * roundTime)
			stop.Store(true)
			all.Wait()
			return perWork(time.Since(begin), int(pairs.Load()))
		}}
	}
	return []*way{each("one goroutine", 1), each("two", 2), each("64", 64)}, ""
}

func memory() ([]*way, string) {
	return []*way{{name: "Buffers and the ledger, without the cache's records", value: func(int) float64 {
		const live = 1_000_000
		inUse := func() float64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return float64(m.HeapInuse)
		}
		buffers := make([]*tracker.Buffer, live)
		before := inUse()
		tr := newTracker(tracker.Config{Device: new(bump), NoCache: true})
		defer closing(tr)()
		fill(tr, buffers)
		taken := inUse() - before
		runtime.KeepAlive(buffers)
		return taken / live
	}}}, ""
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
