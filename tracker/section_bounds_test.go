package tracker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// logged returns a logger, and what it was told. One goroutine logs at a time.
func logged() (*slog.Logger, *bytes.Buffer) {
	text := new(bytes.Buffer)
	return slog.New(slog.NewTextHandler(text, nil)), text
}

func TestPathsAreBounded(t *testing.T) {
	tr, _ := open(t, tracker.Config{NoCache: true, Sections: tracker.SectionConfig{Host: "none", NoDeviceTime: true}})
	for i := range 20_000 {
		tr.Do(fmt.Sprint("s", i), func() {})
	}
	assert.Equal(t, "other", tr.Do("one more", func() {}).Data().Path)
	assert.Equal(t, "s0", tr.Do("s0", func() {}).Data().Path)
	assert.Equal(t, "other", tr.Do(strings.Repeat("x", 2000), func() {}).Data().Path)
	assert.Equal(t, "other", tr.Do("", func() {}).Data().Path)
}

const maxOpen = 1 << 16

// TestOpenSectionsAreBounded opens more than there may be, in goroutines that are gone.
func TestOpenSectionsAreBounded(t *testing.T) {
	logger, text := logged()
	dev := &timed{Device: device(t, sim.Config{})}
	tr, _ := open(t, tracker.Config{
		Device: dev, Logger: logger, MaxEvents: 10, Sections: tracker.SectionConfig{Host: "none"},
	})
	root := tr.Section("root")
	buf := take(t, tr, tracker.Input, 100)
	require.NoError(t, buf.Free())
	elsewhere(func() {
		for range maxOpen - 1 {
			root.Section("part")
		}
	})
	assert.Empty(t, text)
	assert.Empty(t, root.Data().Incomplete)

	one := root.Section("one more")
	d := root.Data()
	assert.Equal(t, "it was ended by force: 65,536 sections were open", d.Incomplete)
	assert.Equal(t, sections.MemoryUse{Peak: 400}, d.GPU)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 400}, d.Allocated)
	assert.Equal(t, sections.MemoryUse{Before: -1, Used: -1, Peak: -1}, d.RSS)
	assert.Equal(t, time.Duration(-1), d.DeviceTime)
	assert.Equal(t, "root/one more", where(t, tr), "it is open")
	assert.Contains(t, text.String(), "is an End missing?")
	assert.Contains(t, text.String(), "section=root")
	assert.Contains(t, text.String(), "TestOpenSectionsAreBounded")

	root.End() // does nothing
	assert.Equal(t, d, root.Data())
	one.End()
	assert.Empty(t, one.Data().Incomplete)
	for range 1000 {
		elsewhere(func() { tr.Section("later") })
	}
	assert.Equal(t, 1, strings.Count(text.String(), "\n"), "said once")
	assert.LessOrEqual(t, dev.held.Load(), int64(maxOpen+600), "the device's events are bounded, too")
	for _, r := range tr.Profile() {
		assert.LessOrEqual(t, r.Calls, int64(1), "what was ended by force did not end")
	}
	require.NoError(t, tr.Close())
	assert.Zero(t, dev.held.Load())
}

func TestDepthIsBounded(t *testing.T) {
	logger, text := logged()
	tr, _ := open(t, tracker.Config{Logger: logger, Sections: tracker.SectionConfig{Host: "none"}})
	var opened []*tracker.Section
	for range 300 {
		opened = append(opened, tr.Section("s"))
	}
	take(t, tr, tracker.Input, 100)
	deep := opened[299].Data()
	assert.Equal(t, "it measured nothing: it began inside of 256 sections", deep.Incomplete)
	assert.Equal(t, sections.MemoryUse{Before: -1, Used: -1, Peak: -1}, deep.GPU)
	assert.Zero(t, deep.Allocated)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 400}, opened[255].Data().Allocated)
	assert.Empty(t, opened[255].Data().Incomplete)
	assert.Equal(t, 1, strings.Count(text.String(), "256 deep; is an End missing?"))
	for _, s := range opened {
		s.End()
	}
	assert.Empty(t, where(t, tr))
	assert.Equal(t, 1, strings.Count(text.String(), "\n"))
}

func TestASectionThatIsOpenWhenItsTrackerCloses(t *testing.T) {
	logger, text := logged()
	tr, _ := open(t, tracker.Config{Logger: logger})
	done := tr.Section("done")
	done.End()
	s := tr.Section("s")
	require.NoError(t, take(t, tr, tracker.Input, 100).Free())
	kept := take(t, tr, tracker.Input, 10)
	require.NoError(t, tr.Close())
	d := s.Data()
	assert.Equal(t, "the tracker was closed before it ended", d.Incomplete)
	assert.Equal(t, sections.MemoryUse{Used: 40, Peak: 400}, d.GPU)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 440}, d.Allocated)
	assert.Equal(t, alloc.Bytes(-1), d.RSS.Used)
	assert.Equal(t, "s", d.Path)
	require.NoError(t, kept.Free())
	done.End()
	assert.Empty(t, text, "it had ended in time")
	s.End()
	assert.Contains(t, text.String(), "called=Section.End")
	assert.Equal(t, d, s.Data())
	assert.Empty(t, slices.Collect(tr.Dump().Events()))
}

// TestSectionsAfterClose says once that the tracker is closed, and measures nothing.
func TestSectionsAfterClose(t *testing.T) {
	for name, use := range map[string]func(tr *tracker.MemTracker, before *tracker.Section) *tracker.Section{
		"Section":         func(tr *tracker.MemTracker, _ *tracker.Section) *tracker.Section { return tr.Section("late") },
		"Section.Section": func(_ *tracker.MemTracker, before *tracker.Section) *tracker.Section { return before.Section("late") },
		"Do": func(tr *tracker.MemTracker, _ *tracker.Section) *tracker.Section {
			return tr.Do("late", func() {})
		},
		"SectionContext": func(tr *tracker.MemTracker, _ *tracker.Section) *tracker.Section {
			_, s := tr.SectionContext(context.Background(), "late")
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			logger, text := logged()
			dev := &timed{Device: device(t, sim.Config{})}
			tr, _ := open(t, tracker.Config{Logger: logger, Device: dev})
			before := tr.Do("before", func() {})
			require.NoError(t, tr.Close())
			for range 2 {
				late := use(tr, before)
				late.End()
				d := late.Data()
				assert.Equal(t, "late", d.Path[strings.LastIndexByte(d.Path, '/')+1:])
				assert.Equal(t, "it measured nothing: the tracker was closed before it began", d.Incomplete)
				assert.Contains(t, d.String(), d.Incomplete)
				assert.Equal(t, sections.MemoryUse{Before: -1, Used: -1, Peak: -1}, d.GPU)
			}
			assert.Equal(t, 1, strings.Count(text.String(), "\n"), text)
			assert.Contains(t, text.String(), "used after Close")
			assert.Zero(t, dev.held.Load())
			assert.Empty(t, before.Data().Incomplete)
		})
	}
}

func TestProfileAfterClose(t *testing.T) {
	logger, text := logged()
	tr, _ := open(t, tracker.Config{Logger: logger})
	require.NoError(t, tr.Close())
	tr.Profile()
	assert.Contains(t, text.String(), "called=Profile")
}

// asking is a device and a handler that ask the tracker whenever they are asked.
type asking struct {
	cachetest.Device
	slog.Handler
	tr   *tracker.MemTracker
	once sync.Mutex // held while it asks: what it causes itself is not a question
	n    int
}

func (a *asking) ask() {
	if a.tr == nil || !a.once.TryLock() {
		return
	}
	defer a.once.Unlock()
	a.n++
	a.tr.Do("asked", func() {}).Data()
	a.tr.LightSnapshot()
}

func (a *asking) StartInterval() (capability.Interval, error) {
	a.ask()
	i, err := a.Device.StartInterval()
	return askingInterval{i, a}, err
}

type askingInterval struct {
	capability.Interval
	*asking
}

func (i askingInterval) Stop() error {
	i.ask()
	return i.Interval.Stop()
}

func (i askingInterval) Elapsed() (time.Duration, error) {
	i.ask()
	return i.Interval.Elapsed()
}

func (a *asking) Handle(ctx context.Context, r slog.Record) error {
	a.ask()
	return a.Handler.Handle(ctx, r)
}

// TestCallbacksMayAskTheTracker runs a clock, a device and a log handler that use the
// tracker that calls them.
func TestCallbacksMayAskTheTracker(t *testing.T) {
	dev := &asking{Device: device(t, sim.Config{}), Handler: slog.DiscardHandler}
	clock := func() time.Time {
		dev.ask()
		return time.Now()
	}
	tr, _ := open(t, tracker.Config{Device: dev, Clock: clock, Logger: slog.New(askingHandler{dev})})
	dev.tr = tr
	var deepest *tracker.Section
	for range 300 { // the handler hears of it
		deepest = tr.Section("s")
	}
	deepest.Data()
	for range 600 { // and times are read
		tr.Do("s", func() {}).Data()
	}
	tr.Profile()
	tr.Section("open")
	require.NoError(t, tr.Close())
	tr.Section("late")
	assert.Greater(t, dev.n, 1000)
}

// askingHandler is enabled whatever it handles.
type askingHandler struct{ *asking }

func (askingHandler) Enabled(context.Context, slog.Level) bool { return true }
