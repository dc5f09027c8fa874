package walk_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestChange names what each action changes; those that are not here change nothing.
func TestChange(t *testing.T) {
	begin, end := walk.Levels{Live: 3, Allocated: 5}, walk.Levels{Live: -3, Allocated: -5}
	want := map[mem.Action]walk.Levels{
		mem.Allocated: begin, mem.Registered: begin, mem.FreeFailed: begin,
		mem.Freed: end, mem.Unregistered: end,
		mem.SegmentAllocated: {Reserved: 5}, mem.SegmentFreed: {Reserved: -5},
	}
	for a := range mem.Retried + 2 {
		assert.Equal(t, want[a], walk.Change(a, alloc.DeviceMemory, 3, 5), "%v", a)
		assert.Equal(t, want[a], walk.Change(a, alloc.UnknownMemory, 3, 5), "%v", a)
		assert.Zero(t, walk.Change(a, alloc.PinnedMemory, 3, 5), "%v", a)
		if sign := walk.Of(a).Sign(); sign != 0 {
			assert.Equal(t, want[a].Live, alloc.Bytes(3*sign), "%v", a)
		}
	}
}

func TestLevels(t *testing.T) {
	before, change := walk.Levels{Live: 1, Allocated: 2, Reserved: 30}, walk.Levels{Live: 5, Allocated: 6, Reserved: -7}
	after := before.Add(change)
	assert.Equal(t, walk.Levels{Live: 6, Allocated: 8, Reserved: 23}, after)
	assert.Equal(t, before, after.Before(change))
	assert.Equal(t, walk.Levels{Reserved: 7}, walk.Levels{}.Before(change), "no level is negative")
}
