package tracker_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	assert.Empty(t, shapes(leaks.OnlyLost()))
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

// The tests of Growth have a clock of their own: ages decide, and the machine's
// would depend on its load.

func TestGrowthIsFoundInANoisyLoop(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	random := rand.New(rand.NewPCG(1, 2))
	var noise []*tracker.Buffer
	for step := range 40 {
		for range random.IntN(8) {
			noise = append(noise, take(t, tr, tracker.Activation, 1+random.IntN(1<<16)))
		}
		for len(noise) > 10 {
			i := random.IntN(len(noise))
			require.NoError(t, noise[i].Free())
			noise = append(noise[:i], noise[i+1:]...)
		}
		leakOneOf(t, tr, 1000+step%3)
		tr.Track()
	}
	found := tr.Growth()
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Site.Function, "leakOneOf")
	assert.Equal(t, 34, found[0].Marks, "from the first window of two marks to the last; three marks of warm-up are left out")
	assert.Equal(t, int64(34), found[0].Gained.Count)
	assert.InDelta(t, 4004, float64(found[0].PerMark()), 4)
	assert.Regexp(t, `^leaks_test\.go:\d+ tracker_test\.leakOneOf grows by 3\.9 KiB a mark: 132\.9 KiB more over 34 marks
	path: tracker_test\.leakOneOf <- TestGrowthIsFoundInANoisyLoop <- testing\.tRunner$`, found[0].String())
}

func leakOneOf(t *testing.T, tr *tracker.MemTracker, elements int) {
	_, err := tr.Alloc(alloc.Shape{elements}, alloc.Float32, tracker.OptimizerState)
	require.NoError(t, err)
}

// TestGrowthIsNotClaimedInASteadyLoop: a batch of random size that is held over
// each mark, memory that is freed in each round, and a model loaded at first.
func TestGrowthIsNotClaimedInASteadyLoop(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	random := rand.New(rand.NewPCG(3, 4))
	take(t, tr, tracker.Parameter, 1<<20)
	var batch *tracker.Buffer
	for range 2000 {
		require.NoError(t, batch.Free())
		batch = take(t, tr, tracker.Input, 1+random.IntN(1<<16))
		buf, err := tr.Alloc(alloc.Shape{1 << 10}, alloc.Float32, tracker.Temporary)
		require.NoError(t, err)
		require.NoError(t, buf.Free())
		tr.Track()
		require.Empty(t, tr.Growth())
	}
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
	tr, _ := open(t, tracker.Config{Clock: clock()})
	m := model{t, tr}
	m.load()
	var inUse []*tracker.Buffer
	for range 40 {
		for _, b := range inUse {
			require.NoError(t, b.Free())
		}
		inUse = nil
		m.step()
		for range 20 {
			inUse = append(inUse, m.predict())
		}
		tr.Track()
	}
	found := tr.Growth()
	require.Len(t, found, 1)
	assert.Equal(t, int64(34), found[0].Gained.Count)
	assert.Regexp(t, `^tracker_test\.take <- model\.tensor <- model\.step <- TestGrowthTellsTheWay`, found[0].Path.String())
	assert.Len(t, found[0].Others, 2, "load and predict")
}

// TestGrowthOfOneBuffer: it is replaced by a larger one at each step.
func TestGrowthOfOneBuffer(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	var cache *tracker.Buffer
	for step := range 40 {
		larger := take(t, tr, tracker.Activation, 1000*(1+step))
		require.NoError(t, cache.Free())
		cache = larger
		tr.Track()
	}
	found := tr.Growth()
	require.Len(t, found, 1)
	assert.Zero(t, found[0].Gained.Count)
	assert.Equal(t, alloc.Bytes(4000), found[0].PerMark())
	assert.NotEmpty(t, found[0].Path)
}

// collect runs the collector until done, or for ten seconds.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC()
		return done()
	}, 10*time.Second, time.Millisecond)
}

//go:noinline
func drop(t *testing.T, tr *tracker.MemTracker, n int) {
	for range n {
		take(t, tr, tracker.Activation, 256)
	}
}

func TestLostBuffersAreTold(t *testing.T) {
	lines := make(logLines, 10)
	tr, _ := open(t, tracker.Config{Lost: tracker.ReportLost, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	kept := take(t, tr, tracker.Parameter, 100)
	drop(t, tr, 3)
	collect(t, func() bool {
		leaks := tr.Leaks(leaks.OnlyLost())
		return len(leaks) == 1 && leaks[0].Lost == 3
	})
	lost := tr.Leaks(leaks.OnlyLost())[0]
	assert.Equal(t, mem.Tally{Count: 3, Bytes: 3072}, lost.Tally)
	assert.Contains(t, lost.String(), "3 of them definitely lost")
	require.Len(t, tr.Leaks(), 2, "what is merely live is told too")
	assert.Equal(t, 3, countEvents(tr, mem.Lost))
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
	for e := range tr.History().Events() {
		if e.Action == action {
			n++
		}
	}
	return n
}

func TestLostBuffersAreFreed(t *testing.T) {
	tr, _ := open(t, tracker.Config{Lost: tracker.FreeLost, Logger: slog.New(slog.DiscardHandler)})
	kept := take(t, tr, tracker.Parameter, 100)
	drop(t, tr, 3)
	collect(t, func() bool { return tr.LightSnapshot().Live.Count == 1 })
	assert.Equal(t, 3, countEvents(tr, mem.Freed))
	require.NoError(t, kept.Free())
}

// TestNoneIsToldLostFalsely allocates and frees for long with the collector
// running all the time.
func TestNoneIsToldLostFalsely(t *testing.T) {
	tr, _ := open(t, tracker.Config{Lost: tracker.FreeLost, MaxEvents: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
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
	assert.Zero(t, countEvents(tr, mem.Lost))
	tracker.VerifyNoLeaks(t, tr)
}

// TestNoneIsToldLostThatCanBeReached: by a map, a channel, a goroutine that will
// wake, a finalizer, or the argument of a cleanup.
func TestNoneIsToldLostThatCanBeReached(t *testing.T) {
	const n = 100
	tr, _ := open(t, tracker.Config{Lost: tracker.FreeLost, MaxEvents: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
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
	assert.Zero(t, countEvents(tr, mem.Lost))
	tracker.VerifyNoLeaks(t, tr)
}

type owner struct{ buffer *tracker.Buffer }
