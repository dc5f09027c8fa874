package tracker_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// verdict is a test that another test looks at.
type verdict struct{ text string }

func (v *verdict) Errorf(format string, args ...any) { v.text += fmt.Sprintf(format, args...) }

func TestVerifyNoLeaksPassesWithoutALeak(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	defer tracker.VerifyNoLeaks(t, tr)
	buf := take(t, tr, tracker.Activation, 1024)
	defer func() { require.NoError(t, buf.Free()) }()
}

func TestVerifyNoLeaksFailsOnALeak(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	tr.Do("load", func() {
		for range 3 {
			take(t, tr, tracker.Activation, 1024, 1024)
		}
	})
	var v verdict
	tracker.VerifyNoLeaks(&v, tr)
	assert.Contains(t, v.text, "device memory was not freed: 3 buffers, 12.0 MiB\n\n"+
		"3 buffers, 12.0 MiB: 3 * Activation (1024, 1024) float32 in section \"load\", allocated by\n")
	assert.Contains(t, v.text, "tracker_test.take(...)\n")
	assert.Contains(t, v.text, "tracker_test.TestVerifyNoLeaksFailsOnALeak")
}

func TestLeaksAreNarrowedByOptions(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	take(t, tr, tracker.Parameter, 1)
	base := tr.LightSnapshot()
	take(t, tr, tracker.Gradient, 2)
	tr.Do("cache", func() {
		tr.Do("kv", func() { take(t, tr, tracker.Activation, 3) })
	})
	tr.Do("caches", func() { takeElsewhere(t, tr, 4) })

	shapes := func(opts ...leaks.Option) (shapes []string) {
		for _, l := range tr.Leaks(opts...) {
			shapes = append(shapes, l.Shape.String())
		}
		return shapes
	}
	assert.Equal(t, []string{"(4,)", "(3,)", "(2,)", "(1,)"}, shapes())
	assert.Equal(t, []string{"(4,)", "(3,)", "(2,)"}, shapes(leaks.Since(base)))
	assert.Equal(t, []string{"(4,)", "(3,)", "(2,)", "(1,)"}, shapes(leaks.Since(nil)))
	assert.Equal(t, []string{"(4,)", "(3,)", "(1,)"}, shapes(leaks.IgnoreKinds(tracker.Gradient, tracker.Input)))
	assert.Equal(t, []string{"(4,)", "(2,)", "(1,)"}, shapes(leaks.IgnoreSection("cache")))
	assert.Equal(t, []string{"(3,)", "(2,)", "(1,)"}, shapes(leaks.IgnoreFunction("github.com/gpumemtrack/gpumemtrack/tracker_test.takeElsewhere")))
	assert.Empty(t, shapes(leaks.OnlyUnreachable()))
}

func takeElsewhere(t *testing.T, tr *tracker.MemTracker, n int) {
	t.Helper()
	take(t, tr, tracker.Activation, n)
}

func TestLimitPeak(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	defer tracker.LimitPeak(t, tr, 24*alloc.MiB)
	small := take(t, tr, tracker.Parameter, 1<<20)
	big := take(t, tr, tracker.Temporary, 5<<20)
	require.NoError(t, big.Free())
	require.NoError(t, small.Free())

	var v verdict
	tracker.LimitPeak(&v, tr, 23*alloc.MiB)
	assert.Regexp(t, `^peak of device memory: 2 buffers, 24\.0 MiB, 1\.0 MiB above the limit of 23\.0 MiB; live at the peak:
	2 buffers, 24\.0 MiB at helpers_test\.go:\d+ tracker_test\.take$`, v.text)
}

// grow runs a program for a minute, in which step happens each tenth of a second, and returns what grows.
func grow(t *testing.T, step func(w *world)) []leaks.Suspect {
	w := newWorld(t, 1)
	w.every(100*ms, func() { step(w) })
	w.run(60 * second)
	return leaks.Growing(w.tr.Snapshot())
}

func TestGrowthIsFoundInANoisyLoop(t *testing.T) {
	var noise []*tracker.Buffer
	n := 0
	found := grow(t, func(w *world) {
		for range w.random.IntN(8) {
			noise = append(noise, take(t, w.tr, tracker.Activation, 1+w.random.IntN(1<<16)))
		}
		for len(noise) > 10 {
			i := w.random.IntN(len(noise))
			require.NoError(t, noise[i].Free())
			noise = append(noise[:i], noise[i+1:]...)
		}
		if n++; n%5 == 0 {
			leakOneOf(t, w.tr, 1000+n%3)
		}
	})
	require.Len(t, found, 1)
	g := found[0]
	assert.Contains(t, g.CallSite.Function, "leakOneOf")
	assert.Equal(t, int64(103), g.Count)
	asJSON, err := json.Marshal(g)
	require.NoError(t, err)
	assert.Regexp(t, `"count":103,"bytes":\d+,"age_ns":6442450944,"freed_since":0,"hourly":(69\d\d|7[0-4]\d\d)[.\d]*,"hourly_at_first":(69\d\d|7[0-4]\d\d)[.\d]*}$`, string(asJSON))
	var again leaks.Suspect
	require.NoError(t, json.Unmarshal(asJSON, &again))
	assert.Equal(t, g, again)
	assert.Regexp(t, `^leaks_test\.go:\d+ tracker_test\.leakOneOf growing, not yet known whether bounded: 103 buffers, 402\.7 KiB; 0 of 103 that became older than 6\.5 s were freed; 7,[123]00 more each hour lately
	path: tracker_test\.leakOneOf <- TestGrowthIsFoundInANoisyLoop\.func1 <- grow\.func1 <- `, g.String())
}

func leakOneOf(t *testing.T, tr *tracker.MemTracker, elements int) {
	_, err := tr.Alloc(alloc.Shape{elements}, alloc.Float32, tracker.OptimizerState)
	require.NoError(t, err)
}

// TestGrowthIsNotClaimedInASteadyLoop: a batch of random size that is held over
// each step, memory that is freed in each round, and a model loaded at first.
func TestGrowthIsNotClaimedInASteadyLoop(t *testing.T) {
	var model, batch *tracker.Buffer
	assert.Empty(t, grow(t, func(w *world) {
		if model == nil {
			model = take(t, w.tr, tracker.Parameter, 1<<20)
		}
		require.NoError(t, batch.Free())
		batch = take(t, w.tr, tracker.Input, 1+w.random.IntN(1<<16))
		buf, err := w.tr.Alloc(alloc.Shape{1 << 10}, alloc.Float32, tracker.Temporary)
		require.NoError(t, err)
		require.NoError(t, buf.Free())
	}))
}

// model allocates everything at one line.
type model struct {
	t  *testing.T
	tr *tracker.MemTracker
}

func (m model) tensor(elements int) *tracker.Buffer {
	return take(m.t, m.tr, tracker.Unspecified, elements)
}

func (m model) load() {
	for range 50 {
		m.tensor(1000)
	}
}

func (m model) step() {
	m.tensor(1000)
}

func (m model) predict() *tracker.Buffer { return m.tensor(1000) }

func TestGrowthTellsTheWay(t *testing.T) {
	var m model
	var inUse []*tracker.Buffer
	n := 0
	found := grow(t, func(w *world) {
		if m.tr == nil {
			m = model{t, w.tr}
			m.load()
		}
		for _, b := range inUse {
			require.NoError(t, b.Free())
		}
		inUse = nil
		if n++; n%5 == 0 {
			m.step()
		}
		for range 20 {
			inUse = append(inUse, m.predict())
		}
	})
	require.Len(t, found, 1)
	assert.InDelta(t, 103, float64(found[0].Count), 2)
	assert.Regexp(t, `^tracker_test\.take <- model\.tensor <- model\.step <- TestGrowthTellsTheWay`, found[0].Path.String())
	assert.Len(t, regexp.MustCompile(`\n\talso: `).FindAllString(found[0].String(), -1), 2, "load and predict")
}

// TestGrowthSlowsDown: a cache whose entries come ever more rarely has two rates.
func TestGrowthSlowsDown(t *testing.T) {
	n, next := 0, 4
	found := grow(t, func(w *world) {
		if n++; n >= next {
			next += 1 + n/16
			take(t, w.tr, tracker.Activation, 1000)
		}
	})
	require.Len(t, found, 1)
	assert.Regexp(t, `more each hour lately \([\d,]+ at first\)`, found[0].String())
}

// collect runs the collector until done, or for a minute.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC()
		return done()
	}, time.Minute, time.Millisecond)
}

//go:noinline
func drop(t *testing.T, tr *tracker.MemTracker, n int) {
	for range n {
		take(t, tr, tracker.Activation, 256)
	}
}

func TestUnreachableBuffersAreTold(t *testing.T) {
	lines := make(logLines, 10)
	tr, _ := open(t, tracker.Config{FindUnreachable: true, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	kept := take(t, tr, tracker.Parameter, 100)
	drop(t, tr, 3)
	collect(t, func() bool {
		leaks := tr.Leaks(leaks.OnlyUnreachable())
		return len(leaks) == 1 && leaks[0].Unreachable == 3
	})
	lost := tr.Leaks(leaks.OnlyUnreachable())[0]
	assert.Equal(t, mem.Tally{Count: 3, Bytes: 3072}, lost.Tally)
	assert.Contains(t, lost.String(), "3 of them definitely leaked")
	require.Len(t, tr.Leaks(), 2, "what is merely live is told too")
	assert.Equal(t, 3, countEvents(tr, mem.Unreachable))
	assert.Contains(t, <-lines, "a buffer was never freed")
	assert.Empty(t, lines, "it is logged once")
	require.NoError(t, kept.Free())
}

// logLines are the lines that a log handler writes.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func countEvents(tr *tracker.MemTracker, action mem.Action) (n int) {
	for e := range tr.Dump().Events() {
		if e.Action == action {
			n++
		}
	}
	return n
}

func TestUnreachableBuffersAreFreed(t *testing.T) {
	tr, _ := open(t, tracker.Config{FreeUnreachable: true, Logger: slog.New(slog.DiscardHandler)})
	kept := take(t, tr, tracker.Parameter, 100)
	drop(t, tr, 3)
	collect(t, func() bool { return tr.LightSnapshot().Live.Count == 1 })
	assert.Equal(t, 3, countEvents(tr, mem.Freed))
	require.NoError(t, kept.Free())
}

// TestNoneIsToldLostFalsely allocates and frees for long with the collector
// running all the time.
func TestNoneIsToldLostFalsely(t *testing.T) {
	tr, _ := open(t, tracker.Config{FreeUnreachable: true, MaxEvents: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	var held []*tracker.Buffer
	for i := range 100_000 {
		buf := take(t, tr, tracker.Activation, 1+i%100)
		if i%3 == 0 {
			held = append(held, buf)
			if len(held) > 1000 {
				require.NoError(t, held[0].Free())
				held = held[1:]
			}
			continue
		}
		require.NoError(t, buf.Free())
	}
	close(stop)
	<-stopped
	for _, buf := range held {
		require.NoError(t, buf.Free())
	}
	assert.Zero(t, countEvents(tr, mem.Unreachable))
	tracker.VerifyNoLeaks(t, tr)
}

// TestNoneIsToldLostThatCanBeReached: by a map, a channel, a goroutine that will
// wake, a finalizer, or the argument of a cleanup.
func TestNoneIsToldLostThatCanBeReached(t *testing.T) {
	const n = 100
	tr, _ := open(t, tracker.Config{FreeUnreachable: true, MaxEvents: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	byMap := make(map[int]any)
	byChannel := make(chan *tracker.Buffer, n)
	wake := make(chan struct{})
	var byGoroutine sync.WaitGroup
	var collected atomic.Int64
	free := func(b *tracker.Buffer) { assert.NoError(t, b.Free()) }
	for i := range n {
		byMap[i] = take(t, tr, tracker.Input, 1)
		byChannel <- take(t, tr, tracker.Input, 2)
		asleep := take(t, tr, tracker.Input, 3)
		byGoroutine.Go(func() {
			<-wake
			free(asleep)
		})
		runtime.SetFinalizer(&owner{take(t, tr, tracker.Input, 4)}, func(o *owner) {
			free(o.buffer)
			collected.Add(1)
		})
		runtime.AddCleanup(new(owner), func(b *tracker.Buffer) {
			free(b)
			collected.Add(1)
		}, take(t, tr, tracker.Input, 5))
	}
	collect(t, func() bool { return collected.Load() == 2*n })
	runtime.GC()
	close(wake)
	byGoroutine.Wait()
	for i := range n {
		free(byMap[i].(*tracker.Buffer))
		free(<-byChannel)
	}
	assert.Zero(t, countEvents(tr, mem.Unreachable))
	tracker.VerifyNoLeaks(t, tr)
}

type owner struct{ buffer *tracker.Buffer }
