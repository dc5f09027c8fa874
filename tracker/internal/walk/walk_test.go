package walk_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestChange names what each action changes; those that are not here change nothing.
func TestChange(t *testing.T) {
	begin, end := walk.Levels{Live: 3, Allocated: 5}, walk.Levels{Live: -3, Allocated: -5}
	want := map[mem.Action]walk.Levels{
		mem.Allocated: begin, mem.Registered: begin, mem.FreeFailed: begin,
		mem.Freed: end, mem.Unregistered: end,
		mem.SegmentAllocated: {Reserved: 5}, mem.SegmentFreed: {Reserved: -5},
	}
	change := func(a mem.Action, in alloc.Memory) walk.Levels {
		return walk.Change(&snapshot.Event{Action: a, Group: snapshot.Group{Memory: in}, Requested: 3, Allocated: 5})
	}
	for a := range mem.Retried + 2 {
		assert.Equal(t, want[a], change(a, alloc.DeviceMemory), "%v", a)
		assert.Equal(t, want[a], change(a, alloc.UnknownMemory), "%v", a)
		assert.Zero(t, change(a, alloc.PinnedMemory), "%v", a)
	}
}

// TestBeginning has no history, then one in which a section ends that began before it.
func TestBeginning(t *testing.T) {
	s := &snapshot.Snapshot{Time: time.Unix(100, 0), Events: 7, Levels: snapshot.Levels{Allocated: 10, Reserved: 20, Live: mem.Tally{Bytes: 8}}}
	r := &snapshot.Dump{Snapshot: s}
	assert.Equal(t, walk.Beginning{Levels: walk.Levels{Live: 8, Allocated: 10, Reserved: 20}, Time: s.Time, Sections: map[uint64]string{}}, walk.BeginningOf(r))

	r.History = tables.WrapHistory(tables.HistoryTables{First: 5, Sections: []string{""}, Stacks: new(tables.StackTable), Events: []tables.EventEntry{
		{Action: mem.Allocated, Allocated: 4, Tensor: &tables.Tensor{Each: 3}}, {Action: mem.Marked},
	}})
	assert.False(t, walk.BeginningOf(r).Segments, "no event is of a segment")

	start := time.Unix(50, 0)
	r.History = tables.WrapHistory(tables.HistoryTables{Start: start, First: 3, Sections: []string{"", "load"}, Stacks: new(tables.StackTable), Events: []tables.EventEntry{
		{Action: mem.SegmentAllocated, Allocated: 32},
		{Action: mem.Allocated, Allocated: 4, Tensor: &tables.Tensor{Each: 3}},
		{Action: mem.SectionEnded, Section: 1, Allocated: 77},
		{Action: mem.SectionBegan, Section: 1, Allocated: 78},
		{Action: mem.SectionEnded, Section: 1, Allocated: 78},
	}})
	want := walk.Beginning{Levels: walk.Levels{Live: 5, Allocated: 6}, Time: start, Segments: true, Sections: map[uint64]string{77: "load"}}
	r.Snapshot.Events = 8
	assert.Equal(t, want, walk.BeginningOf(r), "no level is negative")
}

// TestBackward has the events of the dump, the other way round, up to its snapshot, of which the history may have more,
// as many or less.
func TestBackward(t *testing.T) {
	const first = 1000
	for _, n := range []int{0, 1, 2, 255, 256, 257, 511, 512, 513, 700} {
		entries := make([]tables.EventEntry, n)
		for i := range entries {
			entries[i] = tables.EventEntry{Action: mem.Allocated, Since: time.Duration(i), Ptr: alloc.Ptr(i)}
		}
		for _, at := range []int{first - 1, first, first + 1, first + n - 1, first + n, first + n + 1} {
			d := &snapshot.Dump{Snapshot: &snapshot.Snapshot{Events: uint64(at)}}
			d.History = tables.WrapHistory(tables.HistoryTables{First: first, Events: entries, Sections: []string{""}, Stacks: new(tables.StackTable)})
			kept := max(0, min(n, at-first))

			got, from := walk.Events(d)
			assert.Len(t, got, kept, "%d events, %d before the snapshot", n, at)
			if kept > 0 {
				assert.EqualValues(t, first, from)
			} else {
				assert.EqualValues(t, at, from)
			}

			want := slices.Collect(d.Events())
			slices.Reverse(want)
			backward := slices.Collect(walk.Backward(d))
			assert.Equal(t, want, backward)
			assert.Len(t, backward, kept)
			if kept > 0 {
				assert.EqualValues(t, first+kept-1, backward[0].Seq)
			}

			seen := 0
			for range walk.Backward(d) {
				if seen++; seen == 300 {
					break // in the second part
				}
			}
			assert.Equal(t, min(300, kept), seen)
		}
	}
}

// TestSourceOf: a file is PyTorch's if it has its settings, or if it tells of no process and names its device as PyTorch
// does. A snapshot of a BFC allocator says so.
func TestSourceOf(t *testing.T) {
	for name, test := range map[string]struct {
		snapshot snapshot.Snapshot
		want     walk.Source
	}{
		"a tracker's":                {snapshot.Snapshot{Device: "NVIDIA A100", Origin: snapshot.Origin{PID: 1}}, walk.Tracker},
		"nothing":                    {snapshot.Snapshot{}, walk.Tracker},
		"PyTorch's settings":         {snapshot.Snapshot{Device: "x", Settings: map[string]string{"PYTORCH_CUDA_ALLOC_CONF": ""}}, walk.PyTorch},
		"other settings":             {snapshot.Snapshot{Settings: map[string]string{"allocator": "x"}}, walk.Tracker},
		"PyTorch's device":           {snapshot.Snapshot{Device: "cuda"}, walk.PyTorch},
		"of a process":               {snapshot.Snapshot{Device: "cuda", Origin: snapshot.Origin{Host: "a"}}, walk.Tracker},
		"with a cache":               {snapshot.Snapshot{Device: "cuda", Cache: new(alloc.Stats)}, walk.Tracker},
		"a BFC allocator's":          {snapshot.Snapshot{Settings: map[string]string{walk.AllocatorSetting: walk.BFCAllocator}}, walk.BFC},
		"a BFC allocator's of cuda":  {snapshot.Snapshot{Device: "cuda", Settings: map[string]string{walk.AllocatorSetting: walk.BFCAllocator}}, walk.BFC},
		"settings beside a process":  {snapshot.Snapshot{Origin: snapshot.Origin{PID: 1}, Settings: map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "x"}}, walk.PyTorch},
		"its device beside settings": {snapshot.Snapshot{Device: "cuda", Settings: map[string]string{"x": "y"}}, walk.PyTorch},
	} {
		assert.Equal(t, test.want, walk.SourceOf(&test.snapshot), name)
	}
}

// TestNoHistory: each source's error is one, and says what to do about it.
func TestNoHistory(t *testing.T) {
	for source, text := range map[walk.Source]string{
		walk.Tracker: "Config.MaxEvents", walk.PyTorch: "_record_memory_history", walk.BFC: "one moment",
	} {
		err := source.NoHistory()
		assert.ErrorIs(t, err, walk.ErrNoHistory)
		assert.ErrorContains(t, err, text)
	}
}
