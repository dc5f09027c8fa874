package tracker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// silent is a Logger for what is to be logged.
var silent = slog.New(slog.DiscardHandler)

// ends calls f, and ends the program if f hangs: then its trackers cannot be closed either.
func ends(what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
		panic(fmt.Sprintf("%s hangs:\n%s", what, stacks.String()))
	}
}

// calling is a writer that calls back.
type calling struct {
	buf   bytes.Buffer
	write func(text string)
}

func (w *calling) Write(p []byte) (int, error) {
	w.buf.Write(p) // a race if two write at once
	if w.write != nil {
		w.write(string(p))
	}
	return len(p), nil
}

func (w *calling) String() string { return w.buf.String() }

// sizes returns the sizes of the buffers that a report tells of, in its order: tests
// allocate one of another size before each mark.
func sizes(report string) (n []int) {
	for _, m := range regexp.MustCompile(`\+ \| 1 \* \((\d+),\)`).FindAllStringSubmatch(report, -1) {
		var size int
		fmt.Sscan(m[1], &size)
		n = append(n, size)
	}
	return n
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func TestABlockedWriterHoldsUpNobodyElse(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	blocked := &calling{}
	tr, _ := open(t, tracker.Config{Report: blocked, Dir: t.TempDir()})
	other, _ := open(t, tracker.Config{})
	blocked.write = func(string) {
		entered <- struct{}{}
		<-leave
	}
	take(t, tr, tracker.Input, 1)
	tracked := make(chan struct{})
	go func() {
		defer close(tracked)
		tr.Track()
	}()
	<-entered

	ends("another tracker", func() {
		other.Track()
		fresh, _ := open(t, tracker.Config{})
		fresh.Track()
		assert.NoError(t, fresh.Close())
		assert.NoError(t, other.Close())
	})
	ends("all else of the same tracker", func() {
		take(t, tr, tracker.Input, 2)
		leaks.Growing(tr.Snapshot())
		tr.Leaks()
		tr.Snapshot()
		assert.Len(t, tr.Dump().Marks, 1)
		assert.NoError(t, tr.Err())
	})
	blocked.write = nil
	close(leave)
	<-tracked
	tr.Track()
	assert.Equal(t, []int{1, 2}, sizes(blocked.String()))
}

// TestWritersMayCallAnything: what Write calls does not wait for Write to return.
func TestWritersMayCallAnything(t *testing.T) {
	for name, test := range map[string]struct {
		call func(t *testing.T, w *calling, tr, sharing, other *tracker.MemTracker)
		want []int // of the report
	}{
		"Track": {func(t *testing.T, _ *calling, tr, _, _ *tracker.MemTracker) {
			take(t, tr, tracker.Input, 2)
			assert.Equal(t, 2, tr.Track().Seq)
		}, []int{1, 2}},
		"Track twice": {func(t *testing.T, _ *calling, tr, _, _ *tracker.MemTracker) {
			for n := range 2 {
				take(t, tr, tracker.Input, 2+n)
				assert.Equal(t, 2+n, tr.Track().Seq)
			}
		}, []int{1, 2, 3}},
		"Track of one with the same writer": {func(t *testing.T, _ *calling, _, sharing, _ *tracker.MemTracker) {
			take(t, sharing, tracker.Input, 2)
			sharing.Track()
		}, []int{1, 2}},
		"Track of another": {func(t *testing.T, _ *calling, _, _, other *tracker.MemTracker) {
			other.Track()
		}, []int{1}},
		"New": {func(t *testing.T, w *calling, _, _, _ *tracker.MemTracker) {
			fresh, _ := open(t, tracker.Config{Report: w})
			take(t, fresh, tracker.Input, 2)
			fresh.Track()
			assert.NoError(t, fresh.Close())
		}, []int{1, 2}},
		"Track and Close": {func(t *testing.T, _ *calling, tr, _, _ *tracker.MemTracker) {
			take(t, tr, tracker.Input, 2)
			tr.Track()
			assert.NoError(t, tr.Close())
		}, []int{1, 2}},
		"all else": {func(t *testing.T, _ *calling, tr, _, _ *tracker.MemTracker) {
			leaks.Growing(tr.Snapshot())
			tr.Snapshot()
			tr.Leaks()
			tr.Dump()
			tr.ResetPeak()
			tr.Section("write").End()
			_, err := tr.ClearCache()
			assert.NoError(t, err)
			assert.NoError(t, tr.Err())
			_, err = tr.DumpFile(t.TempDir(), "write")
			assert.NoError(t, err)
		}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &calling{}
			tr, _ := open(t, tracker.Config{Report: w})
			sharing, _ := open(t, tracker.Config{Report: w})
			other, _ := open(t, tracker.Config{})
			w.write = func(string) {
				w.write = nil
				test.call(t, w, tr, sharing, other)
			}
			ends("Track", func() {
				take(t, tr, tracker.Input, 1)
				tr.Track()
			})
			assert.Equal(t, test.want, sizes(w.String()), w.String())
		})
	}
}

// TestAWriterThatAlwaysTracks never comes to the end of its own blocks, but each
// Track from outside does, and the report lacks nothing.
func TestAWriterThatAlwaysTracks(t *testing.T) {
	w := &calling{}
	tr, _ := open(t, tracker.Config{Report: w})
	n, writes := 0, 0
	track := func() {
		n++
		take(t, tr, tracker.Input, n)
		tr.Track()
	}
	w.write = func(string) {
		writes++
		if tr.Err() == nil {
			track()
		}
	}
	ends("Track", func() {
		for range 50 {
			track()
		}
	})
	assert.LessOrEqual(t, writes, 4*50)
	w.write = nil
	require.NoError(t, tr.Close())
	assert.Equal(t, upTo(n), sizes(w.String()))
}

// TestWritersThatTrackEachOther: each is in its Write, and has the other's tracker
// make a mark.
func TestWritersThatTrackEachOther(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	var w [2]*calling
	var tr [2]*tracker.MemTracker
	for i := range w {
		w[i] = &calling{}
		tr[i], _ = open(t, tracker.Config{Report: w[i]})
	}
	for i := range w {
		w[i].write = func(string) {
			w[i].write = nil
			both.Done()
			both.Wait()
			take(t, tr[1-i], tracker.Input, 2)
			tr[1-i].Track()
		}
	}
	ends("Track", func() {
		var group sync.WaitGroup
		for i := range tr {
			take(t, tr[i], tracker.Input, 1)
			group.Go(func() { tr[i].Track() })
		}
		group.Wait()
	})
	for i := range w {
		assert.NoError(t, tr[i].Close())
		assert.ElementsMatch(t, []int{1, 2}, sizes(w[i].String()))
	}
}

// TestTracksBesideEachOther: they are written in their order, and each is when
// its Track has returned.
func TestTracksBesideEachOther(t *testing.T) {
	w := &calling{}
	var mu sync.Mutex
	written := 0
	tr, _ := open(t, tracker.Config{Report: w})
	w.write = func(text string) {
		mu.Lock()
		defer mu.Unlock()
		written += strings.Count(text, "At reportwriter_test.go line ")
		runtime.Gosched()
	}
	ends("Track", func() {
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for range 50 {
					seq := tr.Track().Seq
					mu.Lock()
					assert.GreaterOrEqual(t, written, seq)
					mu.Unlock()
				}
			})
		}
		group.Wait()
	})
	assert.Equal(t, 400, written)
}

// TestWritersThatDoNotReturn: a panic, or an end of the goroutine, is the one's
// whose block it was, and nobody else waits for ever.
func TestWritersThatDoNotReturn(t *testing.T) {
	for name, leave := range map[string]func(){
		"panic":  func() { panic("no paper") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			w := &calling{}
			tr, _ := open(t, tracker.Config{Report: w, Logger: silent})
			var out atomic.Int32
			w.write = func(string) {
				if out.Add(1)%3 == 0 {
					leave()
				}
			}
			ends("Track", func() {
				var group sync.WaitGroup
				for range 30 {
					group.Go(func() {
						defer func() { _ = recover() }()
						tr.Track()
					})
				}
				group.Wait()
				w.write = nil
				tr.Track()
				assert.ErrorContains(t, tr.Close(), "Write did not return")
			})
			assert.Equal(t, 31, strings.Count(w.String(), "At reportwriter_test.go line "))
		})
	}
}

// handler is a slog.Handler that calls back.
type handler struct {
	slog.Handler
	call func()
}

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(context.Context, slog.Record) error {
	h.call()
	return nil
}

func TestLoggersMayCallAnything(t *testing.T) {
	var tr *tracker.MemTracker
	logged := 0
	logger := slog.New(handler{slog.DiscardHandler, func() {
		logged++
		assert.ErrorIs(t, tr.Err(), errFull)
		tr.Track()
		tr.Close()
		tr.Track()
	}})
	tr, _ = open(t, tracker.Config{Report: &failing{blocks: 1}, Logger: logger})
	ends("Track", func() { tr.Track() })
	assert.ErrorIs(t, tr.Close(), alloc.ErrClosed)
	assert.Equal(t, 2, logged, "once for the report, once for the use after Close")
}

// by is a writer that is a value; only some values can be compared.
type by struct {
	to   *calling
	with any
}

func (w by) Write(p []byte) (int, error) { return w.to.Write(p) }

func TestWritersThatCannotBeCompared(t *testing.T) {
	for name, with := range map[string]any{"a slice": []int{1}, "not a number": math.NaN(), "a number": 1.0} {
		t.Run(name, func(t *testing.T) {
			w := &calling{}
			tr, _ := open(t, tracker.Config{Report: by{w, with}})
			for n := range 3 {
				take(t, tr, tracker.Input, n+1)
				tr.Track()
			}
			assert.Equal(t, upTo(3), sizes(w.String()))
		})
	}
}

func TestUseAfterCloseIsToldOnce(t *testing.T) {
	for name, use := range map[string]func(*tracker.MemTracker){
		"Track":    func(tr *tracker.MemTracker) { tr.Track() },
		"Snapshot": func(tr *tracker.MemTracker) { tr.Snapshot() },
	} {
		t.Run(name, func(t *testing.T) {
			var logged strings.Builder
			tr, report := open(t, tracker.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Device: device(t, sim.Config{})})
			require.NoError(t, tr.Close())
			before := report.String()
			for range 3 {
				use(tr)
			}
			assert.Equal(t, before, report.String())
			assert.Equal(t, 1, strings.Count(logged.String(), "level=WARN"), logged.String())
			assert.Contains(t, logged.String(), "used after Close")
			assert.Contains(t, logged.String(), name)
		})
	}
}
