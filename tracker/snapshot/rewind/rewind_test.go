package rewind_test

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// shortRun has two buffers in one segment, of which the first is freed.
func shortRun(t *testing.T) *snapshot.Dump {
	x, err := tables.Untyped("Activation", 4*alloc.MiB)
	require.NoError(t, err)
	stacks := new(tables.StackTable)
	line := mem.Frame{Function: "main.step", File: "main.go", Line: 3}
	id := stacks.Add(mem.Stack{line}, line)
	const segment, second = alloc.Ptr(0x200000), alloc.Ptr(0x600000)
	event := func(i int, action mem.Action, p alloc.Ptr, n alloc.Bytes) tables.EventEntry {
		return tables.EventEntry{Since: time.Duration(i) * time.Second, Action: action, Ptr: p, Allocated: n, Tensor: &x, Stack: id}
	}
	held := alloc.Segment{Ptr: segment, Size: 20 * alloc.MiB, Pool: "large", Blocks: []alloc.Block{
		{Ptr: segment, Size: 4 * alloc.MiB, State: alloc.Inactive},
		{Ptr: second, Size: 4 * alloc.MiB, Requested: 4 * alloc.MiB, State: alloc.Allocated},
		{Ptr: second + 4<<20, Size: 12 * alloc.MiB, State: alloc.Inactive},
	}}
	require.NoError(t, held.Check())
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &snapshot.Snapshot{Time: epoch.Add(10 * time.Second), Events: 14, Segments: []alloc.Segment{held}}
	s.Live, s.Allocated, s.Reserved = mem.Tally{Count: 1, Bytes: 4 * alloc.MiB}, 4*alloc.MiB, 20*alloc.MiB
	*tables.Of(&s.Tables) = tables.Tables{
		Stacks: stacks, Sections: []string{""}, Epoch: epoch,
		Sites:       []tables.SiteEntry{{Place: tables.Place{Stack: id}, Tensor: &x, Live: 1, Total: 1}},
		Allocations: []tables.AllocationEntry{{Ptr: second, Allocated: 4 * alloc.MiB, Since: 2 * time.Second, Seq: 12}},
	}
	return &snapshot.Dump{Snapshot: s, History: tables.WrapHistory(tables.HistoryTables{
		Start: epoch, First: 10, Stacks: stacks, Sections: []string{""},
		Events: []tables.EventEntry{
			event(0, mem.SegmentAllocated, segment, 20*alloc.MiB),
			event(1, mem.Allocated, segment, 4*alloc.MiB),
			event(2, mem.Allocated, second, 4*alloc.MiB),
			event(3, mem.Freed, segment, 4*alloc.MiB),
		},
	})}
}

func TestAt(t *testing.T) {
	r := shortRun(t)
	for event, want := range map[uint64]struct{ buffers, blocks, reserved int }{10: {0, 0, 0}, 11: {0, 1, 20}, 12: {1, 2, 20}, 13: {2, 3, 20}, 14: {1, 3, 20}} {
		s, err := rewind.At(r, event)
		require.NoError(t, err)
		assert.Equal(t, int64(want.buffers), s.Live.Count, "event %d", event)
		assert.Equal(t, alloc.Bytes(want.reserved)*alloc.MiB, s.Reserved)
		blocks := 0
		for _, segment := range s.Segments {
			for range segment.Blocks {
				blocks++
			}
		}
		assert.Equal(t, want.blocks, blocks, "event %d", event)
	}
	s, _, err := rewind.To(r, "peak")
	require.NoError(t, err)
	assert.Equal(t, uint64(13), s.Events)
	for a := range s.Allocations() {
		assert.Equal(t, "main.go:3 main.step", a.CallSite.String())
		assert.Equal(t, time.Duration(a.Seq-10)*time.Second, a.Time.Sub(r.Snapshot.Time.Add(-10*time.Second)))
	}
	for _, event := range []uint64{0, 9, 15, 1 << 63} {
		_, err := rewind.At(r, event)
		assert.ErrorContains(t, err, "the dump has 4 from 10 on")
	}
	assert.Equal(t, 3, tables.OfHistory(&r.History).Site(11).Line)
	assert.Zero(t, tables.OfHistory(&r.History).Site(9))
	assert.Zero(t, tables.OfHistory(&r.History).Site(14))
}

func TestExplainSays(t *testing.T) {
	x := explain.Snapshot(shortRun(t).Snapshot)
	assert.Equal(t, `reserved 20.0 MiB = 4.0 MiB requested + 0 B rounding + 0 B left unsplit + 16.0 MiB inactive
of the inactive memory, ClearCache would give back 0 B; 16.0 MiB is stuck beside a buffer in 1 segment
requests that the cache serves without the driver: 8 of 2.0 MiB; its largest inactive block has 12.0 MiB
1 buffer, 4.0 MiB at main.go:3 main.step keeps 16.0 MiB in 1 segment, the oldest live for 8 s
segment 0x200000 of 20.0 MiB, 16.0 MiB inactive, is kept by one buffer of 4.0 MiB, Activation at main.go:3 main.step, live for 8 s
`, x.String())
	light := &snapshot.Snapshot{Levels: snapshot.Levels{Reserved: 5, Allocated: 4, Live: mem.Tally{Count: 1, Bytes: 3}}}
	assert.Equal(t, "reserved 5 B for 3 B requested; without the segments it is not known what is stuck\n", explain.Snapshot(light).String())
}

// TestPendingBlocksAtEveryEvent goes back through the history of a program with two streams: of each
// buffer the block is allocated, then pending, then inactive.
func TestPendingBlocksAtEveryEvent(t *testing.T) {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	r := tr.Dump()
	states := make(map[alloc.Ptr]alloc.BlockState)
	pending := 0
	for e := range r.Events() {
		s, err := rewind.At(r, e.Seq)
		require.NoError(t, err)
		got := make(map[alloc.Ptr]alloc.BlockState)
		level := alloc.Bytes(0)
		for _, segment := range s.Segments {
			for _, b := range segment.Blocks {
				if _, known := states[b.Ptr]; known {
					got[b.Ptr] = b.State
				}
				if b.State == alloc.Allocated {
					level += b.Size
				}
			}
		}
		assert.Equal(t, states, got, "before event %d", e.Seq)
		assert.Equal(t, level, s.Allocated, "before event %d", e.Seq)
		switch e.Action {
		case mem.Allocated:
			states[e.Ptr] = alloc.Allocated
		case mem.Freed:
			states[e.Ptr] = alloc.Pending
			pending++
		case mem.FreeCompleted:
			delete(states, e.Ptr) // it is joined with what is free beside it
		}
	}
	assert.Equal(t, 3, pending)
}

// TestTheNextBlockTellsWhereALargeOneEnds: a block of which only the request is known may hold up to 1 MiB more.
// The first block that is made this near behind it begins where it ends.
func TestTheNextBlockTellsWhereALargeOneEnds(t *testing.T) {
	r := shortRun(t)
	const segment = alloc.Ptr(0x200000)
	x := tables.OfHistory(&r.History).Events[1].Tensor
	more := 512 * alloc.KiB
	// The second buffer is made behind the first one's unsplit rest, and the first one was there before.
	event := func(action mem.Action, p alloc.Ptr) tables.EventEntry {
		return tables.EventEntry{Action: action, Ptr: p, Allocated: 4 * alloc.MiB, Tensor: x}
	}
	made := segment + alloc.Ptr(4*alloc.MiB+more)
	tables.OfHistory(&r.History).Events = []tables.EventEntry{event(mem.Allocated, made), event(mem.Freed, segment)}
	r.Snapshot.Events = 12
	r.Snapshot.Segments[0].Blocks = []alloc.Block{
		{Ptr: segment, Size: alloc.Bytes(made - segment), State: alloc.Inactive},
		{Ptr: made, Size: 4 * alloc.MiB, Requested: 4 * alloc.MiB, State: alloc.Allocated},
		{Ptr: made + 4<<20, Size: 12*alloc.MiB - more, State: alloc.Inactive},
	}
	tables.Of(&r.Snapshot.Tables).Allocations[0].Ptr = made
	s, err := rewind.At(r, 10)
	require.NoError(t, err)
	assert.Equal(t, []alloc.Block{
		{Ptr: segment, Size: 4*alloc.MiB + more, Requested: 4 * alloc.MiB, State: alloc.Allocated},
		{Ptr: made, Size: 16*alloc.MiB - more, State: alloc.Inactive},
	}, s.Segments[0].Blocks)
	assert.Equal(t, 4*alloc.MiB+more, s.Allocated)

	// Behind a block that is freed already, a new one says nothing of it.
	tables.OfHistory(&r.History).Events = []tables.EventEntry{event(mem.Freed, segment), event(mem.Allocated, made)}
	s, err = rewind.At(r, 10)
	require.NoError(t, err)
	assert.Equal(t, 4*alloc.MiB, s.Segments[0].Blocks[0].Size)
}

// TestEachIsAt: a walk that shows several states has those that At has.
func TestEachIsAt(t *testing.T) {
	for name, dump := range map[string]func(*testing.T) *snapshot.Dump{"short": shortRun, "streams": streams, "recording": gradients} {
		t.Run(name, func(t *testing.T) {
			r := dump(t)
			events := []uint64{r.Snapshot.Events}
			step := 1 + len(tables.OfHistory(&r.History).Events)/40
			for e := range r.Events() {
				if int(e.Seq)%step == 0 {
					events = append(events, e.Seq)
				}
			}
			last := uint64(1 << 63)
			require.NoError(t, rewind.Each(r, events, func(s *snapshot.Snapshot) {
				assert.Less(t, s.Events, last, "the latest comes first")
				last = s.Events
				at, err := rewind.At(r, s.Events)
				require.NoError(t, err)
				var got, want bytes.Buffer
				require.NoError(t, s.WriteJSON(&got))
				require.NoError(t, at.WriteJSON(&want))
				require.Equal(t, want.String(), got.String(), "event %d", s.Events)
			}))
		})
	}
	assert.Error(t, rewind.Each(shortRun(t), []uint64{11, 9}, func(*snapshot.Snapshot) { t.Error("not all of them are known") }))
}

func streams(t *testing.T) *snapshot.Dump {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	return tr.Dump()
}

// gradients is a recording of a GPU, whose history begins in the middle.
func gradients(t *testing.T) *snapshot.Dump {
	f, err := files.ReadFile(filepath.Join(outside.Folder(t, "recordings"), "new", "gradients-256-bf16.pickle.gz"))
	require.NoError(t, err)
	return f.Dump
}
