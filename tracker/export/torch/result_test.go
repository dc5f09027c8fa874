package torch

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/lifetimes"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// TestLeaksAreThoseOfTheProgram holds that a pickle with all events says of leaks what its program
// said, but that its times are microseconds.
func TestLeaksAreThoseOfTheProgram(t *testing.T) {
	for name, tr := range map[string]*tracker.MemTracker{"forgotten": exporttest.Leaky(t), "growing": growing(t)} {
		t.Run(name, func(t *testing.T) {
			c, err := read(bytes.NewReader(write(t, tr.Dump())))
			require.NoError(t, err)
			got := c.Dump.Snapshot
			if name == "forgotten" {
				require.Len(t, tr.Suspects(), 1)
			} else {
				require.Len(t, leaks.Growing(tr.Snapshot()), 1)
			}
			suspects := leaks.Suspects(got)
			require.Len(t, suspects, len(tr.Suspects()))
			for i, want := range tr.Suspects() {
				assert.Equal(t, want.String(), suspects[i].String())
			}
			growth := leaks.Growing(got)
			require.Len(t, growth, len(leaks.Growing(tr.Snapshot())))
			for i, want := range leaks.Growing(tr.Snapshot()) {
				assert.Equal(t, want.String(), growth[i].String())
			}

			var file bytes.Buffer
			require.NoError(t, c.Dump.WriteJSON(&file))
			again, err := snapshot.ReadDump(&file)
			require.NoError(t, err)
			assert.Equal(t, suspects, leaks.Suspects(again.Snapshot))
			assert.Equal(t, growth, leaks.Growing(again.Snapshot))
		})
	}
}

// TestOldBuffersAreNoLeaks reads a history that begins late: buffers older than it are not named.
func TestOldBuffersAreNoLeaks(t *testing.T) {
	d := exporttest.Leaky(t).Dump()
	lists := tables.Of(&d.Snapshot.Tables)
	lists.Lines, lists.Paths = nil, nil
	h := tables.OfHistory(&d.History)
	late := len(h.Events) - len(h.Events)/50
	h.Events, h.First = h.Events[late:], h.First+uint64(late)
	c, err := read(bytes.NewReader(write(t, d)))
	require.NoError(t, err)
	assert.NotNil(t, tables.Of(&c.Dump.Snapshot.Tables).Paths)
	assert.Empty(t, leaks.Suspects(c.Dump.Snapshot))
}

// TestWithoutEventsNothingIsKnownOfLeaks reads a file of live buffers alone.
func TestWithoutEventsNothingIsKnownOfLeaks(t *testing.T) {
	c, err := read(bytes.NewReader(write(t, &snapshot.Dump{Snapshot: exporttest.Leaky(t).Snapshot()})))
	require.NoError(t, err)
	assert.Nil(t, tables.Of(&c.Dump.Snapshot.Tables).Paths)
}

// growing returns a tracker whose program keeps one more buffer each minute, for two hours, on one
// of the two call paths to a line.
func growing(t *testing.T) *tracker.MemTracker {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	entry := func() *tracker.Buffer {
		b, err := tr.AllocBytes(alloc.KiB, tracker.Temporary)
		require.NoError(t, err)
		return b
	}
	work := func() *tracker.Buffer { return entry() }
	keep := func() *tracker.Buffer { return entry() }
	for range 120 {
		for range 6 {
			b := work()
			now = now.Add(10 * time.Second)
			require.NoError(t, b.Free())
		}
		keep()
	}
	return tr
}

func frames(line int) string {
	return fmt.Sprintf(`, "frames": [{"name": "f", "filename": "/src/a.py", "line": %d}]`, line)
}

// TestWhereABufferWasAllocated: the block at the end knows best. Without a stack of its own it has that of its event.
func TestWhereABufferWasAllocated(t *testing.T) {
	for name, c := range map[string]struct {
		block, event string
		stream       int
		line         int
		sites        int // with buffers ever
	}{
		"the same":            {frames(1), frames(1), 0, 1, 1},
		"only the event's":    {"", frames(1), 0, 1, 1},
		"only the block's":    {frames(2), "", 0, 2, 1},
		"the block's first":   {frames(2), frames(1), 0, 2, 1},
		"neither":             {"", "", 0, 0, 1},
		"of another stream":   {"", frames(1), 5, 1, 1},
		"of another and both": {frames(2), frames(1), 5, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := parsed(t, oneBlock(c.block), fmt.Sprintf(`{"action": "alloc", "addr": 1048576, "size": 2097000, "stream": %d, "time_us": 7, "category": "parameter"%s}`, c.stream, c.event), "").Dump
			require.EqualValues(t, 1, d.Snapshot.Events, "the first event is the buffer's")
			for a := range d.Snapshot.Allocations() {
				assert.Equal(t, c.line, a.CallSite.Line)
				assert.EqualValues(t, 0, a.Stream)
				assert.EqualValues(t, "Parameter", a.Kind)
				assert.EqualValues(t, 0, a.Seq)
				assert.EqualValues(t, 7, a.Time.UnixMicro())
			}
			sites := 0
			for site := range d.Snapshot.CallSites() {
				assert.Equal(t, site.Live, site.Total)
				assert.Equal(t, site.Live, site.Peak)
				sites += int(site.Total.Count)
			}
			assert.Equal(t, c.sites, sites)
			for e := range d.Events() {
				assert.Equal(t, c.line, e.Stack.CallSite().Line, "the event agrees with the block")
				assert.EqualValues(t, 2097152, e.Allocated)
			}
		})
	}
}

// TestTheFirstOfTwoPeaks is the peak, as in a tracker: what was live then is counted.
func TestTheFirstOfTwoPeaks(t *testing.T) {
	event := func(action string, at, line int) string {
		return fmt.Sprintf(`{"action": "%s", "addr": %d, "size": 1000%s}`, action, at, frames(line))
	}
	d := parsed(t, "", event("alloc", 512, 1)+","+event("free_completed", 512, 1)+","+event("alloc", 1024, 2)+","+event("free_completed", 1024, 2), "").Dump
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 1000}, d.Snapshot.Peak)
	peaks := make(map[int]int64)
	for site := range d.Snapshot.CallSites() {
		peaks[site.CallSite.Line] = site.Peak.Count
	}
	assert.Equal(t, map[int]int64{1: 1, 2: 0}, peaks)
}

// TestWhatHeldMemoryAtAnError are the lines with live buffers then, most bytes first, also if the program has freed these before the snapshot; those
// that had none are not named. Reserved memory is that of then, too.
func TestWhatHeldMemoryAtAnError(t *testing.T) {
	event := func(action string, at, size, line int) string {
		return fmt.Sprintf(`{"action": "%s", "addr": %d, "size": %d%s}`, action, at, size, frames(line))
	}
	d := parsed(t, oneBlock(frames(3)), strings.Join([]string{
		event("segment_alloc", 1048576, 2097152, 1), event("segment_alloc", 8<<20, 2<<20, 1),
		event("alloc", 1048576, 2097000, 3), event("alloc", 8<<20, 1<<20, 4), event("alloc", 9<<20, 512, 5), event("free_completed", 9<<20, 512, 5),
		event("oom", 0, 1<<30, 6),
		event("free_completed", 8<<20, 1<<20, 4), event("segment_free", 8<<20, 2<<20, 1)}, ","), "").Dump
	require.NotNil(t, d.OOM)
	var lines []int
	for _, site := range d.OOM.CallSites {
		lines = append(lines, site.Frame.Line)
	}
	assert.Equal(t, []int{3, 4}, lines)
	assert.Equal(t, 4*alloc.MiB, d.OOM.Reserved)
	assert.Equal(t, 2*alloc.MiB, d.Snapshot.Reserved)
}

// TestLifetimes: a line is counted from as many live buffers as statistics name, each of its call paths too. Live buffers have their number among all
// that the line ever allocated, those from before the history first.
func TestLifetimes(t *testing.T) {
	const few, many = survival.Fewest - 1, survival.Fewest
	line := func(n int) mem.Frame { return mem.Frame{Function: "main.f", File: "main.go", Line: n} }
	var stacks tables.StackTable
	path := func(n, by int) tables.StackID {
		return stacks.Add(mem.Stack{line(n), {Function: "main.main", File: "main.go", Line: by}}, line(n))
	}
	each := tables.Tensor{Each: 512}
	a, b, c := path(1, 10), path(1, 20), path(2, 10)
	to := &tables.Tables{Stacks: &stacks, Sites: []tables.SiteEntry{
		{Place: tables.Place{Stack: a}, Tensor: &each, Live: many}, {Place: tables.Place{Stack: b}, Tensor: &each, Live: few}, {Place: tables.Place{Stack: c}, Tensor: &each, Live: few},
	}}
	h := &tables.HistoryTables{First: 2, Start: time.Unix(1, 0)}
	ptr := alloc.Ptr(0)
	allocate := func(site int32, stack tables.StackID, lives bool) {
		ptr += 512
		if lives {
			to.Allocations = append(to.Allocations, tables.AllocationEntry{Site: site, Ptr: ptr, Seq: h.First + uint64(len(h.Events))})
		}
		h.Events = append(h.Events, tables.EventEntry{Action: mem.Allocated, Ptr: ptr, Stack: stack, Since: time.Duration(len(h.Events)) * time.Second})
		if !lives {
			h.Events = append(h.Events, tables.EventEntry{Action: mem.Freed, Ptr: ptr, Stack: stack, Since: time.Duration(len(h.Events)) * time.Second})
		}
	}
	to.Allocations = []tables.AllocationEntry{{Site: 0, Ptr: 1 << 30, Seq: 0}, {Site: 1, Ptr: 1 << 31, Seq: 1}} // from before the history
	allocate(0, a, false)
	for range many - 1 {
		allocate(0, a, true)
	}
	for range few - 1 {
		allocate(1, b, true)
		allocate(1, b, false)
	}
	for range few {
		allocate(2, c, true)
		allocate(2, c, false)
	}
	require.NoError(t, lifetimes.Add(to, h, func(int64) error { return nil }))
	require.Len(t, to.Lines, 1, "the other line has too few live buffers")
	require.Len(t, to.Paths, 1, "and the other path")
	one := to.Lines[line(1)]
	require.NotNil(t, one)
	require.NotNil(t, to.Paths[a])
	assert.EqualValues(t, many+1+2*few-1, one.Allocated)
	assert.EqualValues(t, many+1, to.Paths[a].Allocated)
	var inLine, inPath []uint16
	for _, e := range to.Allocations {
		if e.Site == 0 {
			inLine, inPath = append(inLine, e.InLine), append(inPath, e.InPath)
		}
	}
	assert.Equal(t, []uint16{0, 3, 4, 5, 6, 7, 8, 9}, inLine, "0 and 1 are from before, 2 is freed")
	assert.Equal(t, []uint16{0, 2, 3, 4, 5, 6, 7, 8}, inPath)
	assert.EqualValues(t, h.First+uint64(len(h.Events))-1-uint64(3*few), one.Last, "the latest free of the line")

	for name, none := range map[string]*tables.HistoryTables{"no times": {Events: h.Events}, "no events": {Start: h.Start}} {
		to.Lines, to.Paths = nil, nil
		require.NoError(t, lifetimes.Add(to, none, func(int64) error { return nil }))
		assert.Nil(t, to.Lines, name)
	}
	assert.ErrorIs(t, lifetimes.Add(to, h, func(int64) error { return bounded.ErrTooLarge }), bounded.ErrTooLarge)
}
