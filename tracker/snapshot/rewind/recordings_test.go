package rewind_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// plain is a state as a walk by hand keeps it: three maps and sums.
type plain struct {
	live                      map[alloc.Ptr]alloc.Bytes // requested
	segments                  map[alloc.Ptr]alloc.Segment
	requested, held, reserved alloc.Bytes // held is allocated, as far as the events tell
}

// undo goes back over an event.
func (w *plain) undo(e *snapshot.Event) {
	switch e.Action {
	case mem.Allocated:
		delete(w.live, e.Ptr)
		w.requested, w.held = w.requested-e.Requested, w.held-e.Allocated
	case mem.Freed:
		w.live[e.Ptr] = e.Requested
		w.requested, w.held = w.requested+e.Requested, w.held+e.Allocated
	case mem.SegmentAllocated:
		delete(w.segments, e.Ptr)
		w.reserved -= e.Allocated
	case mem.SegmentFreed:
		s := alloc.Segment{Ptr: e.Ptr, Size: e.Allocated, Pool: "large", Stream: e.Stream, Private: e.Private}
		if e.Allocated <= 2*alloc.MiB {
			s.Pool = "small"
		}
		w.segments[e.Ptr] = s
		w.reserved += e.Allocated
	}
}

// everyRecording calls test with each device of each recording of a GPU, and of what PyTorch wrote for tests.
func everyRecording(t *testing.T, test func(t *testing.T, d *snapshot.Dump)) {
	var paths []string
	for _, pattern := range []string{
		filepath.Join(outside.Folder(t, "recordings"), "*.pickle.gz"), filepath.Join(outside.Folder(t, "recordings"), "new", "*.pickle.gz"),
		filepath.Join("..", "..", "export", "torch", "testdata", "*.pickle"),
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		paths = append(paths, found...)
	}
	for _, path := range paths {
		f, err := files.ReadFile(path)
		require.NoError(t, err, path)
		for _, d := range append([]*snapshot.Dump{f.Dump}, f.Dump.Others...) {
			t.Run(filepath.Base(path), func(t *testing.T) { test(t, d) })
		}
	}
}

// TestRecordingsAreThoseOfAPlainWalk: levels, buffers, and the pools and sizes of segments are those of a plain walk before the
// events of every recording: before each, or in long ones before as many as take some tenths of a second.
func TestRecordingsAreThoseOfAPlainWalk(t *testing.T) {
	known := 0 // states whose segments are known
	everyRecording(t, func(t *testing.T, d *snapshot.Dump) {
		s := d.Snapshot
		events := slices.Collect(d.Events())
		if len(events) == 0 {
			_, err := rewind.At(d, 0)
			assert.True(t, err != nil || s.Events == 0)
			return
		}
		w := plain{live: make(map[alloc.Ptr]alloc.Bytes), segments: make(map[alloc.Ptr]alloc.Segment), reserved: s.Reserved}
		for a := range s.Allocations() {
			w.live[a.Ptr] = a.Requested
			w.requested, w.held = w.requested+a.Requested, w.held+a.Allocated
		}
		expandable := false
		for _, x := range s.Segments {
			expandable = expandable || x.Expandable
			x.Blocks = nil
			w.segments[x.Ptr] = x
		}
		const work = 150_000 // buffers and segments to look at
		step := 1 + len(events)*(len(w.live)+len(w.segments)+100)/work
		var at []uint64
		for i := len(events) - 1; i >= 0; i -= step {
			at = append(at, events[i].Seq)
		}
		next := len(events)
		err := rewind.Each(d, at, func(got *snapshot.Snapshot) {
			for ; next > 0 && events[next-1].Seq >= got.Events; next-- {
				w.undo(&events[next-1])
			}
			at := got.Events
			require.Equal(t, w.requested, got.Live.Bytes, "event %d", at)
			require.EqualValues(t, len(w.live), got.Live.Count, "event %d", at)
			require.Equal(t, w.reserved, got.Reserved, "event %d", at)
			require.GreaterOrEqual(t, got.Allocated, w.requested, "event %d", at)
			require.LessOrEqual(t, got.Allocated, w.held+alloc.Bytes(len(w.live))*alloc.MiB, "event %d", at)
			live := make(map[alloc.Ptr]alloc.Bytes, len(w.live))
			for a := range got.Allocations() {
				live[a.Ptr] = a.Requested
			}
			require.Equal(t, w.live, live, "event %d", at)
			if got.Segments == nil {
				return
			}
			known++
			segments := make(map[alloc.Ptr]alloc.Segment)
			var size, inBlocks alloc.Bytes
			for _, x := range got.Segments {
				size += x.Size
				for _, b := range x.Blocks {
					if b.State == alloc.Allocated {
						inBlocks += b.Size
					}
				}
				x.Blocks = nil
				segments[x.Ptr] = x
			}
			require.Equal(t, got.Reserved, size, "event %d", at)
			require.Equal(t, got.Allocated, inBlocks, "event %d", at)
			if !expandable { // those join
				require.Equal(t, w.segments, segments, "event %d", at)
			}
		})
		if err != nil {
			require.Zero(t, s.Segments, "%v", err)
		}
	})
	assert.Greater(t, known, 1000)
}

// TestThePeakOfARecording is the first moment of most allocated bytes, and no state in the recording has more.
func TestThePeakOfARecording(t *testing.T) {
	everyRecording(t, func(t *testing.T, d *snapshot.Dump) {
		got, at, err := rewind.To(d, "peak")
		if err != nil {
			require.Empty(t, slices.Collect(d.Events()), "%v", err)
			return
		}
		change := map[mem.Action]alloc.Bytes{mem.Allocated: 1, mem.Freed: -1}
		level := d.Snapshot.Allocated
		events := slices.Collect(d.Events())
		for _, e := range events {
			level -= change[e.Action] * e.Allocated
		}
		beginning, most, first := level, alloc.Bytes(0), d.Snapshot.Events
		for _, e := range events {
			if level += change[e.Action] * e.Allocated; level > most {
				most, first = level, e.Seq+1
			}
		}
		if len(events) > 0 && beginning > most {
			most, first = beginning, events[0].Seq
		}
		if len(events) > 0 && first > events[len(events)-1].Seq {
			first = d.Snapshot.Events
		}
		assert.Equal(t, first, at.Event)
		assert.GreaterOrEqual(t, got.Allocated, most)
	})
}
