package torch

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// written is what must come through a file: of a device, its levels, and of its segments
// the streams, what is expandable and what is pending.
type written struct {
	ordinal                       int
	live, peak                    snapshot.Tally
	reserved, expandable, pending alloc.Bytes
	streams                       []alloc.Stream
	freeRequests                  int
}

func told(c *Contents) (all []written) {
	for _, r := range append([]*snapshot.Record{c.Record}, c.Record.Others...) {
		s := r.Snapshot
		w := written{ordinal: s.Ordinal, live: s.Live, peak: s.Peak}
		for _, segment := range s.Segments {
			w.reserved += segment.Size
			if segment.Expandable {
				w.expandable += segment.Size
			}
			w.streams = append(w.streams, segment.Stream)
			for b := range segment.Blocks() {
				if b.State == alloc.Pending {
					w.pending += b.Size
				}
			}
		}
		slices.Sort(w.streams)
		w.streams = slices.Compact(w.streams)
		for e := range r.Events() {
			if e.Action == snapshot.FreeRequested {
				w.freeRequests++
			}
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(x, y written) int { return x.ordinal - y.ordinal })
	return all
}

// TestWrittenAgain: what PyTorch tells of several devices, of streams and of blocks that wait
// for them is in a file that was read and written.
func TestWrittenAgain(t *testing.T) {
	for _, name := range []string{
		"gcn-qwen3embed-3gpu-expandable-oom.pickle.gz", "llama7b-offload-10streams.pickle.gz", "verl-vllm-private-pools.pickle.gz",
	} {
		t.Run(name, func(t *testing.T) {
			first := readRecording(t, name)
			var b bytes.Buffer
			require.NoError(t, Write(&b, first.Record))
			requireViewable(t, b.Bytes())
			second, err := Read(&b)
			require.NoError(t, err)
			assert.Equal(t, told(first), told(second))
		})
	}
}
