package walk_test

import (
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
