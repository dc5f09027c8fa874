package torch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestStreamsOfATracker writes a program with two streams, two blocks pending, as PyTorch tells of
// such.
func TestStreamsOfATracker(t *testing.T) {
	for name, events := range map[string]int{"whole history": 0, "torn history": 4} {
		t.Run(name, func(t *testing.T) {
			tr, _ := exporttest.Streams(t, tracker.Config{MaxEvents: events})
			r := tr.Dump()
			var b bytes.Buffer
			require.NoError(t, Write(&b, r))
			requireViewable(t, b.Bytes())
			got, err := read(&b)
			require.NoError(t, err)

			var pending, allocated int
			for _, segment := range got.Dump.Snapshot.Segments {
				assert.Equal(t, exporttest.Compute, segment.Stream)
				for _, b := range segment.Blocks {
					switch b.State {
					case alloc.Pending:
						pending++
						assert.Equal(t, 3*alloc.MiB, b.Requested)
					case alloc.Allocated:
						allocated++
					}
				}
			}
			assert.Equal(t, 2, pending)
			assert.Equal(t, 1, allocated)
			labels := 0
			for a := range got.Dump.Snapshot.Allocations() {
				if a.Label == pendingLabel {
					labels++
					if events == 0 {
						assert.Equal(t, tracker.Input, a.Kind)
						assert.Contains(t, a.Stack.String(), "exporttest.batch")
					}
				}
			}
			assert.Equal(t, 2, labels)
			if events == 0 {
				assert.Equal(t, map[mem.Action]int{
					mem.SegmentAllocated: 2, mem.Allocated: 4, mem.FreeRequested: 3, mem.Freed: 1,
				}, counts(got.Dump))
			}
		})
	}
}

func counts(r *snapshot.Dump) map[mem.Action]int {
	counts := make(map[mem.Action]int)
	for e := range r.Events() {
		counts[e.Action]++
	}
	return counts
}
