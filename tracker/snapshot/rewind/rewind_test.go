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
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
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
of the inactive memory, ClearCache would give back 0 B; 16.0 MiB is pinned beside a buffer in 1 segment
requests that the cache serves without the driver: 8 of 2.0 MiB; its largest inactive block has 12.0 MiB
1 buffer, 4.0 MiB at main.go:3 main.step pins 16.0 MiB in 1 segment, the oldest live for 8 s
segment 0x200000 of 20.0 MiB, 16.0 MiB inactive, is pinned by one buffer of 4.0 MiB, Activation at main.go:3 main.step, live for 8 s
`, x.String())
	light := &snapshot.Snapshot{Levels: snapshot.Levels{Reserved: 5, Allocated: 4, Live: mem.Tally{Count: 1, Bytes: 3}}}
	assert.Equal(t, "reserved 5 B for 3 B requested; without the segments it is not known what is pinned\n", explain.Snapshot(light).String())
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

// story returns a dump with these events, a second apart from number 10 on, which ends in these segments. The blocks in use are
// live buffers.
func story(segments []alloc.Segment, events ...tables.EventEntry) *snapshot.Dump {
	stacks := new(tables.StackTable)
	line := mem.Frame{Function: "main.step", File: "main.go", Line: 3}
	stacks.Add(mem.Stack{line}, line)
	for i := range events {
		events[i].Since = time.Duration(i) * time.Second
	}
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &snapshot.Snapshot{Time: epoch.Add(time.Minute), Events: 10 + uint64(len(events)), Segments: segments}
	lists := tables.Tables{Stacks: stacks, Sections: []string{""}, Epoch: epoch, Allocations: []tables.AllocationEntry{}}
	for _, segment := range segments {
		s.Reserved += segment.Size
		for _, b := range segment.Blocks {
			if b.State == alloc.Allocated {
				s.Live, s.Allocated = s.Live.Add(mem.Tally{Count: 1, Bytes: b.Requested}), s.Allocated+b.Size
				lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: 1}, Tensor: &tables.Tensor{Kind: "Input", Each: b.Requested}, Live: 1})
				lists.Allocations = append(lists.Allocations, tables.AllocationEntry{Site: int32(len(lists.Sites) - 1), Ptr: b.Ptr, Allocated: b.Size})
			}
		}
	}
	s.Tables = tables.Wrap(lists)
	return &snapshot.Dump{Snapshot: s, History: tables.WrapHistory(tables.HistoryTables{Start: epoch, First: 10, Stacks: stacks, Sections: []string{""}, Events: events})}
}

// an is an event about a buffer or a segment.
func an(action mem.Action, at alloc.Ptr, size alloc.Bytes) tables.EventEntry {
	e := tables.EventEntry{Action: action, Ptr: at, Allocated: size}
	if action == mem.Allocated || action == mem.Freed || action == mem.Registered || action == mem.Unregistered {
		e.Stack, e.Tensor = 1, &tables.Tensor{Kind: "Input", Each: size}
	}
	return e
}

// segment returns a segment of the driver with these blocks.
func segment(at alloc.Ptr, pool string, blocks ...alloc.Block) alloc.Segment {
	s := alloc.Segment{Ptr: at, Pool: pool}
	for _, b := range blocks {
		b.Ptr = at + alloc.Ptr(s.Size)
		s.Size += b.Size
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

func inactive(size alloc.Bytes) alloc.Block { return alloc.Block{Size: size, State: alloc.Inactive} }

func inUse(size alloc.Bytes) alloc.Block {
	return alloc.Block{Size: size, Requested: size, State: alloc.Allocated}
}

const base = alloc.Ptr(0x1000_0000)

// TestPeakIsTheFirstMomentOfTheMost: of several moments with the most allocated bytes, the first one counts: what led to it is
// what there is to explain.
func TestPeakIsTheFirstMomentOfTheMost(t *testing.T) {
	empty := []alloc.Segment{segment(base, "large", inactive(20*alloc.MiB))}
	alloc4, free4 := an(mem.Allocated, base, 4*alloc.MiB), an(mem.Freed, base, 4*alloc.MiB)
	s, at, err := rewind.To(story(empty, an(mem.Allocated, base+8<<20, 2*alloc.MiB), an(mem.Freed, base+8<<20, 2*alloc.MiB), alloc4, free4, alloc4, free4), "peak")
	require.NoError(t, err)
	assert.Equal(t, rewind.Moment{At: "peak", Event: 13}, at)
	assert.Equal(t, 4*alloc.MiB, s.Allocated)

	full := []alloc.Segment{segment(base, "large", inUse(4*alloc.MiB), inactive(16*alloc.MiB))}
	d := story(full, alloc4)
	s, at, err = rewind.To(d, "peak")
	require.NoError(t, err)
	assert.Same(t, d.Snapshot, s, "the last event led to it")
	assert.EqualValues(t, 11, at.Event)

	// The last events are not in the history, as in a file of PyTorch: the end is nearest.
	d = story(full, alloc4)
	d.Snapshot.Events += 5
	s, at, err = rewind.To(d, "peak")
	require.NoError(t, err)
	assert.Same(t, d.Snapshot, s)
	assert.EqualValues(t, 16, at.Event)

	// The end has as much as there was before the first event, and nothing had more.
	d = story(full, free4, alloc4)
	s, _, err = rewind.To(d, "peak")
	require.NoError(t, err)
	assert.Same(t, d.Snapshot, s)
}

// TestThePeakBeforeAHistory: a history that begins late may never again have as much as there was at its beginning.
func TestThePeakBeforeAHistory(t *testing.T) {
	empty := []alloc.Segment{segment(base, "large", inactive(20*alloc.MiB))}
	alloc2, free2 := an(mem.Allocated, base+8<<20, 2*alloc.MiB), an(mem.Freed, base+8<<20, 2*alloc.MiB)
	for _, d := range []*snapshot.Dump{
		story(empty, an(mem.Freed, base, 4*alloc.MiB)),
		story(empty, an(mem.Freed, base, 4*alloc.MiB), alloc2, free2),
	} {
		s, at, err := rewind.To(d, "peak")
		require.NoError(t, err)
		assert.Equal(t, rewind.Moment{At: "peak", Event: 10}, at)
		assert.Equal(t, 4*alloc.MiB, s.Allocated)
	}
}

// TestPeakWithoutEvents: a tracker without a history knows whether its peak is now. Other sources do not.
func TestPeakWithoutEvents(t *testing.T) {
	d := story([]alloc.Segment{segment(base, "large", inUse(4*alloc.MiB))})
	d.Snapshot.Peak = d.Snapshot.Live
	s, _, err := rewind.To(d, "peak")
	require.NoError(t, err)
	assert.Same(t, d.Snapshot, s)

	d.Snapshot.Peak.Bytes++
	_, at, err := rewind.To(d, "peak")
	assert.ErrorIs(t, err, walk.ErrNoHistory)
	assert.Zero(t, at)

	d.Snapshot.Peak = d.Snapshot.Live
	d.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": ""}
	_, _, err = rewind.To(d, "peak")
	assert.ErrorIs(t, err, walk.ErrNoHistory)
}

// TestMoments: a word names a moment, and says which it found.
func TestMoments(t *testing.T) {
	oom := func(requested alloc.Bytes) tables.EventEntry { return an(mem.OutOfMemory, 0, requested) }
	empty := []alloc.Segment{segment(base, "large", inactive(20*alloc.MiB))}
	d := story(empty, oom(1*alloc.GiB), an(mem.Allocated, base, 4*alloc.MiB), oom(2*alloc.GiB), an(mem.Marked, 0, 1), an(mem.Freed, base, 4*alloc.MiB))
	none := story(empty, an(mem.Marked, 0, 1))
	last := story(empty, an(mem.Allocated, base, 4*alloc.MiB), an(mem.Freed, base, 4*alloc.MiB), oom(3*alloc.GiB), an(mem.Marked, 0, 1))
	failed := story(empty, an(mem.Marked, 0, 1))
	failed.OOM = &snapshot.OOM{Requested: 5 * alloc.GiB}
	unknown := story(empty)
	unknown.OOM = &snapshot.OOM{Requested: -1}
	lost := story(empty, oom(1), an(mem.Allocated, base, 4*alloc.MiB), an(mem.Freed, base, 4*alloc.MiB))
	lost.OOM = &snapshot.OOM{Requested: 1}
	*tables.Of(&lost.Snapshot.Tables) = tables.Tables{Stacks: new(tables.StackTable)}
	lost.Snapshot.Live.Count = 1
	for _, c := range []struct {
		name, word, says string
		dump             *snapshot.Dump
		want             rewind.Moment
		allocated        alloc.Bytes
	}{
		{"the end", "end", "the end", d, rewind.Moment{At: "end", Event: 15}, 0},
		{"no error led to the dump", "", "the end", d, rewind.Moment{At: "end", Event: 15}, 0},
		{"the latest error", "oom", "the error", d, rewind.Moment{At: "oom", Event: 12, Asked: 2 * alloc.GiB}, 4 * alloc.MiB},
		{"a number", "12", "event 12", d, rewind.Moment{At: "event", Event: 12}, 4 * alloc.MiB},
		{"the peak", "peak", "the peak", d, rewind.Moment{At: "peak", Event: 12}, 4 * alloc.MiB},
		{"nothing happened after the error", "oom", "the error", last, rewind.Moment{At: "oom", Event: 12, Asked: 3 * alloc.GiB}, 0},
		{"the dump of an error without its event", "", "the error", failed, rewind.Moment{At: "oom", Event: 11, Asked: 5 * alloc.GiB}, 0},
		{"of an error whose request is not known", "oom", "the error", unknown, rewind.Moment{At: "oom", Event: 10}, 0},
		{"of an error before which nothing is known", "", "the end", lost, rewind.Moment{At: "end", Event: 13}, 0},
	} {
		s, at, err := rewind.To(c.dump, c.word)
		require.NoError(t, err, c.name)
		assert.Equal(t, c.want, at, c.name)
		assert.Equal(t, c.says, at.String(), c.name)
		assert.Equal(t, c.allocated, s.Allocated, c.name)
	}
	s, _, err := rewind.To(last, "oom")
	require.NoError(t, err)
	assert.Same(t, last.Snapshot, s, "nothing changed after the error: all that the snapshot has is of then")
	_, _, err = rewind.To(none, "oom")
	assert.EqualError(t, err, "no out of memory error among its 1 events")
	_, _, err = rewind.To(d, "beginning")
	assert.EqualError(t, err, `no moment "beginning": want end, peak, oom, or the number of an event`)
	_, _, err = rewind.To(d, "16")
	assert.EqualError(t, err, "no event 16: the dump has 5 from 10 on")
}

// TestStatesThatAreNotKnown have an error that says why.
func TestStatesThatAreNotKnown(t *testing.T) {
	d := story(nil)
	s, err := rewind.At(d, 10)
	require.NoError(t, err, "that is the end")
	assert.Same(t, d.Snapshot, s)
	_, err = rewind.At(d, 9)
	assert.ErrorIs(t, err, walk.ErrNoHistory)

	d = story(nil, an(mem.Allocated, base, 512), an(mem.Freed, base, 512))
	tables.Of(&d.Snapshot.Tables).Allocations = nil
	s, err = rewind.At(d, 11)
	require.NoError(t, err, "no buffer is live, so none is missing")
	assert.EqualValues(t, 1, s.Live.Count)
	d.Snapshot.Live.Count = 1
	_, err = rewind.At(d, 11)
	assert.EqualError(t, err, "the 1 live buffers are not told one by one: the state before them is not known")

	d = story(nil, an(mem.Allocated, base, 512), an(mem.Freed, base, 512))
	d.Snapshot.Events += 5 // the last events are not in the history
	_, err = rewind.At(d, 12)
	assert.EqualError(t, err, "no event 12: the dump has 2 from 10 on")
}

// TestDevicesWithoutACache reserve what is allocated, without what other code has registered.
func TestDevicesWithoutACache(t *testing.T) {
	d := story(nil, an(mem.Allocated, base, 512), an(mem.Registered, base+512, 1024), an(mem.Unregistered, base+512, 1024), an(mem.Freed, base, 512))
	for event, want := range map[uint64]snapshot.Levels{
		10: {Memory: map[alloc.Memory]mem.Tally{}},
		11: {Live: mem.Tally{Count: 1, Bytes: 512}, Allocated: 512, Reserved: 512, Memory: map[alloc.Memory]mem.Tally{0: {Count: 1, Bytes: 512}}},
		12: {Live: mem.Tally{Count: 2, Bytes: 1536}, Allocated: 1536, Registered: 1024, Reserved: 512, Memory: map[alloc.Memory]mem.Tally{0: {Count: 2, Bytes: 1536}}},
	} {
		s, err := rewind.At(d, event)
		require.NoError(t, err)
		want.DriverUsed = -1
		assert.Equal(t, want, s.Levels, "event %d", event)
		assert.Empty(t, s.Segments)
	}
}

// TestReservedIsNeverNegative: the device was asked a moment before the snapshot's last event.
func TestReservedIsNeverNegative(t *testing.T) {
	d := story(nil, an(mem.SegmentAllocated, base, 4*alloc.MiB), an(mem.SegmentAllocated, base+64<<20, 4*alloc.MiB))
	d.Snapshot.Reserved = 4 * alloc.MiB
	for event, want := range map[uint64]alloc.Bytes{12: 4 * alloc.MiB, 11: 0, 10: 0} {
		s, err := rewind.At(d, event)
		require.NoError(t, err)
		assert.Equal(t, want, s.Reserved)
	}
}

// TestBuffersOfUnknownKind: a free whose buffer is not known has the size of its block, and no kind.
func TestBuffersOfUnknownKind(t *testing.T) {
	s, err := rewind.At(story(nil, tables.EventEntry{Action: mem.Freed, Ptr: base, Allocated: 512, Stack: 1}), 10)
	require.NoError(t, err)
	for a := range s.Allocations() {
		assert.Equal(t, []any{mem.Kind(""), alloc.Bytes(512), alloc.Bytes(512), base}, []any{a.Kind, a.Requested, a.Allocated, a.Ptr})
	}
	assert.EqualValues(t, 1, s.Live.Count)
}

// TestTimesOfAnotherBuffer: an address is used again and again. A buffer has the time of the last allocation before the moment,
// if that was of its size: else its own is not in the history.
func TestTimesOfAnotherBuffer(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	d := story(nil, an(mem.Allocated, base, 512), an(mem.Freed, base, 512), an(mem.Marked, 0, 1), an(mem.Freed, base, 1024))
	s, err := rewind.At(d, 13)
	require.NoError(t, err)
	for a := range s.Allocations() {
		assert.Zero(t, a.Seq)
		assert.Equal(t, begun.Add(3*time.Second), a.Time, "not later than it was freed")
	}
	d = story(nil, an(mem.Allocated, base, 512), an(mem.Freed, base, 512), an(mem.Allocated, base, 512), an(mem.Freed, base, 512))
	s, err = rewind.At(d, 13)
	require.NoError(t, err)
	for a := range s.Allocations() {
		assert.EqualValues(t, 12, a.Seq)
		assert.Equal(t, begun.Add(2*time.Second), a.Time)
	}
}

// TestMoreStreamsThanEntriesDistinguish: the streams of the snapshot and of its history together may be too many. Those that
// are left over count as the default stream.
func TestMoreStreamsThanEntriesDistinguish(t *testing.T) {
	d := story(nil)
	lists, h := tables.Of(&d.Snapshot.Tables), tables.OfHistory(&d.History)
	lists.Streams, h.Streams = []alloc.Stream{0}, []alloc.Stream{0}
	for i := range 200 {
		lists.Streams, h.Streams = append(lists.Streams, alloc.Stream(1000+i)), append(h.Streams, alloc.Stream(2000+i))
		lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: 1}, Tensor: &tables.Tensor{Each: 1}, Stream: uint8(i + 1)})
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{Site: int32(i), Ptr: base + alloc.Ptr(i), Seq: uint64(i)})
		e := an(mem.Freed, base+1000+alloc.Ptr(i), 1)
		e.Stream = uint8(i + 1)
		h.Events = append(h.Events, e)
	}
	d.Snapshot.Events = 210
	s, err := rewind.At(d, 10)
	require.NoError(t, err)
	streams := make(map[alloc.Stream]int)
	for a := range s.Allocations() {
		streams[a.Stream]++
	}
	assert.Len(t, streams, tables.MaxStreams)
	assert.Equal(t, 400-(tables.MaxStreams-1), streams[0])
	assert.Len(t, tables.Of(&s.Tables).Streams, tables.MaxStreams, "a file with more cannot be read")
}

// TestLifetimesOfAHistory: where the source does not count how long buffers lived, the history tells it, by line of code.
func TestLifetimesOfAHistory(t *testing.T) {
	second := an(mem.Allocated, base+512, 512)
	unknown := an(mem.Freed, base+1024, 512)
	unknown.Stack = 0
	d := story(nil, an(mem.Allocated, base, 512), second, an(mem.Freed, base+512, 512), an(mem.Freed, base+512, 512), an(mem.Allocated, base+1024, 512), unknown, an(mem.Freed, base, 512), an(mem.Marked, 0, 1))
	for _, event := range []uint64{17, 12} {
		s, err := rewind.At(d, event)
		require.NoError(t, err)
		lines := tables.Of(&s.Tables).Lines
		require.Len(t, lines, 1)
		var want survival.Ages
		want.Add(1 * time.Second) // the second free at that address has no allocation
		want.Add(6 * time.Second)
		assert.Equal(t, &want, lines[mem.Frame{Function: "main.step", File: "main.go", Line: 3}].Ages, "it is of the complete history")
	}
	counted := map[mem.Frame]*survival.Unit{}
	tables.Of(&d.Snapshot.Tables).Lines = counted
	s, err := rewind.At(d, 12)
	require.NoError(t, err)
	assert.Empty(t, tables.Of(&s.Tables).Lines, "the source's own")
}

// TestStacksOfBothSources: a state has buffers of the snapshot and of the history, each with its own source's call stack.
func TestStacksOfBothSources(t *testing.T) {
	d := story([]alloc.Segment{segment(base, "large", inUse(4*alloc.MiB), inactive(16*alloc.MiB))}, an(mem.Freed, base+8<<20, 2*alloc.MiB))
	stacks, line := new(tables.StackTable), mem.Frame{Function: "main.load", File: "main.go", Line: 8}
	stacks.Add(mem.Stack{line}, line)
	tables.OfHistory(&d.History).Stacks = stacks
	s, err := rewind.At(d, 10)
	require.NoError(t, err)
	lists := tables.Of(&s.Tables)
	var lines, paths []string
	for _, a := range lists.Allocations {
		stack := lists.Sites[a.Site].Stack
		lines = append(lines, lists.Stacks.Stack(stack)[0].String())
		paths = append(paths, lists.Stacks.Path(stack).String())
		assert.Equal(t, lists.Stacks.Stack(stack)[0], lists.Stacks.Site(stack))
	}
	assert.ElementsMatch(t, []string{"main.go:3 main.step", "main.go:8 main.load"}, lines)
	assert.ElementsMatch(t, []string{"main.step", "main.load"}, paths)
}
