package tracker_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// elsewhere runs f in a goroutine of its own, and waits for it.
func elsewhere(f func()) {
	var group sync.WaitGroup
	group.Go(f)
	group.Wait()
}

// where returns the path that an allocation of the calling goroutine carries.
func where(t *testing.T, tr *tracker.MemTracker) string {
	t.Helper()
	buf := take(t, tr, tracker.Temporary, 1)
	path := ""
	for a := range tr.Snapshot().Allocations() {
		if a.Ptr == buf.Ptr() {
			path = a.Section
		}
	}
	require.NoError(t, buf.Free())
	return path
}

// bound runs f as a part of s.
func bound(t *testing.T, s *tracker.Section, f func()) {
	t.Helper()
	require.NoError(t, s.Bind(func() error {
		f()
		return nil
	})())
}

func TestBindHandsASectionToGoroutines(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	step := tr.Section("step")
	work := step.Bind(func() error {
		buf := take(t, tr, tracker.Activation, 100)
		tr.Do("part", func() { take(t, tr, tracker.Temporary, 10) })
		return buf.Free()
	})
	const goroutines, calls = 8, 20
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for range calls {
				assert.NoError(t, work())
			}
			assert.Empty(t, where(t, tr), "nothing is left of it")
		})
	}
	group.Wait()
	step.End()

	d := step.Data()
	assert.Equal(t, mem.Tally{Count: 2 * goroutines * calls, Bytes: 440 * goroutines * calls}, d.Allocated)
	assert.Equal(t, mem.Tally{Count: goroutines * calls, Bytes: 400 * goroutines * calls}, d.Freed)
	for _, r := range tr.Profile() {
		if r.Path == "step/part" {
			assert.Equal(t, mem.Tally{Count: goroutines * calls, Bytes: 40 * goroutines * calls}, r.Allocated)
		}
	}
}

func TestBindReturnsTheError(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	full := errors.New("full")
	assert.Equal(t, full, tr.Section("s").Bind(func() error { return full })())
}

func TestTheGoroutinesOwnSectionsComeBack(t *testing.T) {
	for name, leave := range map[string]func(){
		"return": func() {},
		"panic":  func() { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			tr, _ := open(t, tracker.Config{})
			other := tr.Section("other")
			elsewhere(func() {
				own := tr.Section("own")
				func() {
					defer func() { recover() }()
					bound(t, other, func() {
						assert.Equal(t, "other", where(t, tr))
						tr.Section("never ended")
						assert.Equal(t, "other/never ended", where(t, tr))
						bound(t, own, func() { assert.Equal(t, "own", where(t, tr)) })
						assert.Equal(t, "other/never ended", where(t, tr))
						leave()
					})
				}()
				assert.Equal(t, "own", where(t, tr))
				own.End()
				assert.Empty(t, where(t, tr))
			})
			other.End()
			assert.Equal(t, int64(3), other.Data().Allocated.Count)
		})
	}
}

func TestBoundWorkThatExitsItsGoroutine(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	s := tr.Section("s")
	elsewhere(func() {
		defer func() { assert.Empty(t, where(t, tr)) }()
		s.Bind(func() error {
			runtime.Goexit()
			return nil
		})()
	})
}

// TestBoundWorkAfterTheEnd counts for what is open around the section, and for
// nothing that its goroutine has open itself.
func TestBoundWorkAfterTheEnd(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	whole := tr.Section("whole")
	part := whole.Section("part")
	part.End()
	elsewhere(func() {
		own := tr.Section("own")
		bound(t, part, func() {
			assert.Equal(t, "whole", where(t, tr))
			assert.Equal(t, "whole/part/late", tr.Do("late", func() { take(t, tr, tracker.Input, 1) }).Data().Path)
			whole.End()
			assert.Empty(t, where(t, tr))
		})
		assert.Equal(t, "own", where(t, tr))
		own.End()
		assert.Equal(t, mem.Tally{Count: 1, Bytes: 4}, own.Data().Allocated)
	})
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 8}, whole.Data().Allocated)
	assert.Zero(t, part.Data().Allocated)
}

// TestAnEndInBoundWork leaves that work where it is.
func TestAnEndInBoundWork(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	other := tr.Section("other")
	elsewhere(func() {
		own := tr.Section("own")
		tr.Section("inner")
		bound(t, other, func() {
			own.End()
			assert.Equal(t, "other", where(t, tr))
		})
		assert.Empty(t, where(t, tr))
	})
}

func TestSectionContext(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	another, _ := open(t, tracker.Config{})
	ctx, step := tr.SectionContext(context.Background(), "step")
	assert.Equal(t, "step", where(t, tr), "it is the goroutine's, too")
	elsewhere(func() {
		assert.Empty(t, where(t, tr), "a context alone does nothing")
		inner, part := tr.SectionContext(ctx, "part")
		assert.Equal(t, "step/part", where(t, tr))
		_, leaf := tr.SectionContext(inner, "leaf")
		assert.Equal(t, "step/part/leaf", where(t, tr))
		leaf.End()

		_, sibling := tr.SectionContext(ctx, "sibling")
		assert.Equal(t, "step/sibling", where(t, tr), "by the context, not by what the goroutine has open")
		sibling.End()
		part.End()

		_, theirs := another.SectionContext(ctx, "theirs")
		assert.Equal(t, "theirs", theirs.Data().Path, "each tracker has its own")
		theirs.End()

		tr.Do("own", func() {
			_, below := tr.SectionContext(context.Background(), "below")
			assert.Equal(t, "own/below", below.Data().Path, "a context that carries none")
			below.End()
		})
	})
	step.End()
	assert.Equal(t, int64(4), step.Data().Allocated.Count)
	_, late := tr.SectionContext(ctx, "late")
	late.End()
	assert.Equal(t, "step/late", late.Data().Path)
}

func TestSectionsOfFailures(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	full := errors.New("full")
	run := func() error {
		take(t, tr, tracker.Input, 1)
		return full
	}
	whole := tr.Section("whole")
	var err error
	assert.Equal(t, "whole/a", tr.Do("a", func() { err = run() }).Data().Path)
	assert.Equal(t, full, err)
	elsewhere(func() {
		part := whole.Section("b")
		defer part.End()
		assert.Equal(t, full, run())
	})
	tr.Do("c", func() {})
	whole.End()
	var calls []string
	for _, r := range tr.Profile() {
		calls = append(calls, r.Path+" "+r.Allocated.String())
	}
	assert.Equal(t, []string{"whole 2 buffers, 8 B", "whole/a 1 buffer, 4 B", "whole/b 1 buffer, 4 B", "whole/c 0 buffers, 0 B"}, calls)
}

func TestAForgottenEndSpoilsNothingBeyondTheSectionAround(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	var forgotten *tracker.Section
	for range 3 {
		step := tr.Section("step")
		forgotten = tr.Section("forgotten")
		assert.Equal(t, "step/forgotten", where(t, tr))
		step.End()
		assert.Empty(t, where(t, tr))
	}
	kept := take(t, tr, tracker.Input, 1000)
	assert.Equal(t, alloc.Bytes(4000), forgotten.Data().GPU.Used, "it measures on")
	assert.Equal(t, int64(1), forgotten.Data().Allocated.Count)
	bound(t, forgotten, func() { take(t, tr, tracker.Input, 1) })
	assert.Equal(t, int64(2), forgotten.Data().Allocated.Count, "of what it is handed")
	forgotten.End()
	require.NoError(t, kept.Free())
}

// TestAnEndElsewhere takes away nothing but the section.
func TestAnEndElsewhere(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	whole := tr.Section("whole")
	part := tr.Section("part")
	elsewhere(whole.End)
	assert.Equal(t, "whole/part", where(t, tr))
	part.End()
	assert.Empty(t, where(t, tr))
}

// TestSectionsThatNeverEnd belong to goroutines that are gone, whose place in memory
// others take.
func TestSectionsThatNeverEnd(t *testing.T) {
	tr, _ := open(t, tracker.Config{NoCache: true, Sections: tracker.SectionConfig{Host: "none", NoDeviceTime: true}})
	for range 100 {
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() { tr.Section("never ended") })
		}
		group.Wait()
		for range 20 {
			group.Go(func() { take(t, tr, tracker.Input, 1) })
		}
		group.Wait()
	}
	for site := range tr.Snapshot().CallSites() {
		assert.Empty(t, site.Section)
	}
}

// TestSectionsWhileTheTrackerCloses runs sections in every way meanwhile: nothing of the
// device stays, and each says whether it is whole.
func TestSectionsWhileTheTrackerCloses(t *testing.T) {
	dev := &timed{Device: device(t, sim.Config{})}
	tr, _ := open(t, tracker.Config{Device: dev, Logger: slog.New(slog.DiscardHandler)})
	ctx, whole := tr.SectionContext(context.Background(), "whole")
	var group sync.WaitGroup
	var rounds atomic.Int64
	for range 8 {
		group.Go(func() {
			for range 300 {
				rounds.Add(1)
				_, part := tr.SectionContext(ctx, "part")
				var inner *tracker.Section
				work := part.Bind(func() error {
					inner = tr.Section("inner") // not ended
					tr.Do("leaf", func() {
						if buf, err := tr.AllocBytes(100, tracker.Temporary); err == nil {
							assert.NoError(t, buf.Free())
						}
					})
					return nil
				})
				elsewhere(func() { assert.NoError(t, work()) })
				group.Go(part.End)
				part.Data()
				tr.Profile()
				part.End()
				inner.End()
				if d := inner.Data(); d.Incomplete == "" {
					assert.Equal(t, mem.Tally{Count: 1, Bytes: 100}, d.Allocated)
				}
			}
		})
	}
	for rounds.Load() < 1000 {
		runtime.Gosched()
	}
	require.NoError(t, tr.Close())
	group.Wait()
	assert.NotEmpty(t, whole.Data().Incomplete)
	assert.Zero(t, dev.held.Load())
}
