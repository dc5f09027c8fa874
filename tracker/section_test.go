package tracker_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

func TestSectionEventsInHistory(t *testing.T) {
	tr, _ := open(t, tracker.Config{NoCache: true})
	step := tr.Section("step")
	tr.Do("forward", func() { take(t, tr, tracker.Activation, 8) })
	step.End()
	buf := take(t, tr, tracker.Parameter, 4)
	require.NoError(t, buf.Free())

	var lines []string
	for e := range tr.Dump().Events() {
		lines = append(lines, fmt.Sprint(e.Action, " ", e.Section, " ", e.Span))
	}
	assert.Equal(t, []string{
		"section_begin step 1",
		"section_begin step/forward 2",
		"alloc step/forward 0",
		"section_end step/forward 2",
		"section_end step 1",
		"alloc  0",
		"free  0",
	}, lines)

	var sections []string
	for a := range tr.Snapshot().Allocations() {
		sections = append(sections, a.Section)
	}
	assert.Equal(t, []string{"step/forward"}, sections)
}

func TestSectionNumbers(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	before := take(t, tr, tracker.Parameter, 1000)
	s := tr.Section("s")
	kept := take(t, tr, tracker.Activation, 100)
	temporary := take(t, tr, tracker.Temporary, 10_000)
	require.NoError(t, temporary.Free())
	require.NoError(t, before.Free())
	s.End()
	s.End() // does nothing
	take(t, tr, tracker.Activation, 1_000_000)

	d := s.Data()
	assert.Equal(t, sections.MemoryUse{Before: 4000, Used: 400, Peak: 44_400}, d.GPU)
	assert.Equal(t, alloc.Bytes(-3600), d.GPU.Consumed())
	assert.Equal(t, alloc.Bytes(44_000), d.GPU.Peaked())
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 40_400}, d.Allocated)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 44_000}, d.Freed)
	assert.Equal(t, mem.Tally{Bytes: -3600}, d.Allocated.Sub(d.Freed))
	assert.Equal(t, alloc.Bytes(40_400), d.SelfPeak)
	assert.GreaterOrEqual(t, d.DeviceTime, time.Duration(0))
	require.NoError(t, kept.Free())
}

func TestSectionTable(t *testing.T) {
	d := sections.Data{
		Measured: sections.Measured{
			Path: "forward", Time: 12 * time.Millisecond, DeviceTime: 10 * time.Millisecond, CPUTime: 23 * time.Millisecond,
		},
		GPU:  sections.MemoryUse{Before: 2898 * alloc.MiB, Used: 5465 * alloc.MiB, Peak: 6902 * alloc.MiB},
		RSS:  sections.MemoryUse{Before: 125 * alloc.MiB, Used: 170 * alloc.MiB, Peak: 180 * alloc.MiB, PeakAtMost: true},
		Heap: sections.MemoryUse{Before: 8 * alloc.MiB, Used: 6 * alloc.MiB, Peak: -1},
	}
	unknown := sections.MemoryUse{Before: -1, Used: -1, Peak: -1}
	other := sections.Data{Measured: sections.Measured{Path: "load", DeviceTime: -1, CPUTime: -1}, RSS: unknown, Heap: unknown}
	other.Incomplete = "the tracker was closed before it ended"
	golden(t, "section.txt", d.Table()+d.String()+"\n"+other.Table()+other.String()+"\n")
}

func TestSectionEndsWhenItsFunctionPanics(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	assert.Panics(t, func() { tr.Do("s", func() { panic("no") }) })
	assert.Equal(t, "next", tr.Do("next", func() {}).Data().Path)
}

func TestPartOfASectionThatHasEnded(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	whole := tr.Section("whole")
	part := whole.Section("part")
	part.End()
	late := part.Section("late")
	take(t, tr, tracker.Activation, 10)
	late.End()
	whole.End()
	assert.Equal(t, "whole/part/late", late.Data().Path)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 40}, late.Data().Allocated)
	assert.Equal(t, mem.Tally{}, part.Data().Allocated, "it had ended")
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 40}, whole.Data().Allocated)
}

func TestSectionsLeaveTheCacheAlone(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{GCBefore: true}})
	require.NoError(t, take(t, tr, tracker.Activation, 8<<20).Free())
	reserved := tr.LightSnapshot().Reserved
	require.GreaterOrEqual(t, reserved, 32*alloc.MiB)
	tr.Do("s", func() {})
	assert.Equal(t, reserved, tr.LightSnapshot().Reserved)
}

func TestGCBeforeRunsTheCollectorAtBothEnds(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{GCBefore: true, Host: "none"}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tr.Do("s", func() {})
	runtime.ReadMemStats(&after)
	assert.GreaterOrEqual(t, after.NumForcedGC-before.NumForcedGC, uint32(2))
}

func TestWhatOfTheHostASectionMeasures(t *testing.T) {
	_, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Sections: tracker.SectionConfig{Host: "details"}})
	assert.EqualError(t, err, `new tracker: Config.Sections.Host is "details": want "", "detail", "peak" or "none"`)
}

func TestNoHost(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{Host: "none", GCBefore: true}})
	d := tr.Do("s", func() {}).Data()
	unknown := sections.MemoryUse{Before: -1, Used: -1, Peak: -1}
	assert.Equal(t, unknown, d.RSS)
	assert.Equal(t, unknown, d.Heap)
}

// TestAClockThatRunsBackwards gives no section a negative time.
func TestAClockThatRunsBackwards(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr, _ := open(t, tracker.Config{Clock: func() time.Time { return now }})
	s := tr.Section("step")
	b := take(t, tr, tracker.Activation, 1)
	now = now.Add(-4 * time.Hour)
	assert.Zero(t, s.Data().Time, "so far")
	require.NoError(t, b.Free())
	s.End()
	assert.Zero(t, s.Data().Time)
	for _, row := range tr.Profile() {
		assert.Zero(t, row.Time)
	}
}
