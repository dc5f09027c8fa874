package torch

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// written is what must come through a file: of a device, its levels and events, and of its
// segments the streams, what is expandable and what is pending.
type written struct {
	ordinal                       int
	live, peak                    mem.Tally
	reserved, expandable, pending alloc.Bytes
	streams                       []alloc.Stream
	pools                         map[string]alloc.Bytes // reserved, by private pool
	events                        map[mem.Action]int
	freedAt                       map[string]int // how many buffers were freed at each call stack
}

func told(c *contents) (all []written) {
	for _, r := range append([]*snapshot.Dump{c.Dump}, c.Dump.Others...) {
		s := r.Snapshot
		w := written{ordinal: s.Ordinal, live: s.Live, peak: s.Peak, events: make(map[mem.Action]int), freedAt: make(map[string]int), pools: make(map[string]alloc.Bytes)}
		for _, segment := range s.Segments {
			w.reserved += segment.Size
			w.pools[segment.Private+" "+segment.Pool] += segment.Size
			if segment.Expandable {
				w.expandable += segment.Size
			}
			w.streams = append(w.streams, segment.Stream)
			for _, b := range segment.Blocks {
				if b.State == alloc.Pending {
					w.pending += b.Size
				}
			}
		}
		slices.Sort(w.streams)
		w.streams = slices.Compact(w.streams)
		for e := range r.Events() {
			w.events[e.Action]++
			if e.Action == mem.Freed {
				w.freedAt[e.FreedAt.String()]++
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
			require.NoError(t, Write(&b, first.Dump))
			requireViewable(t, b.Bytes())
			second, err := read(&b)
			require.NoError(t, err)
			assert.Equal(t, told(first), told(second))
		})
	}
}

// TestPythonReadsSeveralDevices has Python's own pickle read what was written again, and walk
// through the events of each device.
func TestPythonReadsSeveralDevices(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH")
	}
	const name = "gcn-qwen3embed-3gpu-expandable-oom.pickle.gz"
	first := readRecording(t, name)
	path := filepath.Join(t.TempDir(), "again.pickle")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, Write(f, first.Dump))
	require.NoError(t, f.Close())
	out, err := exec.Command(python, filepath.Join("testdata", "walk.py"), path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var got map[string]walked
	require.NoError(t, json.Unmarshal(out, &got))
	assert.Equal(t, golden(t)[name], got)
}
