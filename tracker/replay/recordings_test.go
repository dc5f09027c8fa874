package replay_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/recordings"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// open reads the part of a device of a recording from a real GPU.
func open(t testing.TB, name string, device int) *snapshot.Dump {
	t.Helper()
	f, err := files.ReadFile(filepath.Join(recordings.Dir(t), name+".pickle.gz"))
	require.NoError(t, err)
	for _, r := range append(f.Dump.Others, f.Dump) {
		if r.Snapshot.Ordinal == device {
			return r
		}
	}
	t.Fatalf("%s has no device %d", name, device)
	return nil
}

// known are the recordings that can be replayed, their layout at the beginning, and the least memory on which
// each allocator runs them, in MiB.
var known = []struct {
	name     string
	device   int
	layout   string
	smallest [3]alloc.Bytes
}{
	{"image-batches", 0, "as recorded", [3]alloc.Bytes{126, 108, 103}},
	{"new/gradients-256-bf16", 0, "as recorded", [3]alloc.Bytes{9852, 9646, 9618}},
	{"transformer-forward-128", 0, "as recorded", [3]alloc.Bytes{18756, 18500, 18455}},
	{"transformer-forward-512", 0, "as recorded", [3]alloc.Bytes{42612, 41796, 41652}},
	{"transformer-step-128", 0, "as recorded", [3]alloc.Bytes{52696, 52938, 52263}},
	{"transformer-step-512", 0, "as recorded", [3]alloc.Bytes{53254, 53040, 52326}},
	{"lm4-adam-bf16-ctx200", 0, "empty", [3]alloc.Bytes{1064, 1020, 931}},
	{"tinyllama-qlora-4bit", 0, "as recorded", [3]alloc.Bytes{6000, 5638, 5603}},
	{"llama7b-offload-10streams", 0, "as recorded", [3]alloc.Bytes{20874, 19938, 19838}},
	{"gcn-qwen3embed-3gpu-expandable-oom", 0, "empty", [3]alloc.Bytes{8234, 8124, 8064}},
	{"gcn-qwen3embed-3gpu-expandable-oom", 1, "empty", [3]alloc.Bytes{90434, 85362, 85231}},
	{"gcn-qwen3embed-3gpu-expandable-oom", 2, "empty", [3]alloc.Bytes{21386, 20770, 20565}},
}

// TestRecordings replays what real GPUs did. Without a limit it is what was recorded: every peak, and as
// many driver calls. With the recorded settings it is so call by call, and address by address.
func TestRecordings(t *testing.T) {
	for _, k := range known {
		t.Run(fmt.Sprintf("%s %d", k.name, k.device), func(t *testing.T) {
			r := open(t, k.name, k.device)
			cfg := replay.Recorded(r)
			cfg.Memory = gcnMemory
			got, err := replay.Run(r, cfg)
			require.NoError(t, err)
			assert.Nil(t, got.Gap())
			assert.Equal(t, k.layout, got.Layout())
			want, replayed := peaks(got.Recorded), peaks(got.Levels)
			// PyTorch does not tell what a block that is gone had beyond its rounded request.
			assert.GreaterOrEqual(t, replayed.PeakAllocated, want.PeakAllocated)
			want.PeakAllocated, replayed.PeakAllocated = 0, 0
			assert.Equal(t, want, replayed)
			assert.Equal(t, got.Recorded.OOMs == 0, got.Fits)
			agreement := got.Agreement()
			assert.True(t, agreement.Whole(), agreement)
			assert.Equal(t, got.Recorded.DriverAllocs+got.Recorded.DriverFrees, agreement.RecordedCalls)
			assert.Positive(t, agreement.RecordedAddresses)
			var smallest [3]alloc.Bytes
			for i, a := range replay.Allocators() {
				found, err := replay.Smallest(r, replay.Config{Allocator: a})
				require.NoError(t, err)
				smallest[i] = found.Memory / alloc.MiB
			}
			assert.Equal(t, k.smallest, smallest, "%d", smallest)
		})
	}
}

// gcnMemory is what the recorded device had: its segments stand 9/8 of that apart.
const gcnMemory = 81066 * alloc.MiB

// TestRecordedOutOfMemory runs out of memory at the recorded request, which a larger device serves.
func TestRecordedOutOfMemory(t *testing.T) {
	r := open(t, "gcn-qwen3embed-3gpu-expandable-oom", 1)
	recorded := uint64(0)
	for e := range r.Events() {
		if e.Action == mem.OutOfMemory {
			recorded = e.Seq
		}
	}
	cfg := replay.Recorded(r)
	cfg.Memory = gcnMemory
	got, err := replay.Run(r, cfg)
	require.NoError(t, err)
	require.False(t, got.Fits)
	assert.Equal(t, recorded, got.OOM().Event)
	assert.Equal(t, alloc.Bytes(5308694528), got.OOM().Requested)
	assert.Equal(t, alloc.Bytes(84202749952), got.OOM().Reserved)
	assert.Equal(t, 181, got.OOM().CallSite.Line)
	cfg.Memory = 96 * alloc.GiB
	got, err = replay.Run(r, cfg)
	require.NoError(t, err)
	assert.True(t, got.Fits)
}

// TestExplainRecordings adds up every account. That of transformer-step-128 is known: 58,280 MiB
// were reserved for 52,263.9 MiB of requests.
func TestExplainRecordings(t *testing.T) {
	for _, k := range known {
		r := open(t, k.name, k.device)
		for _, at := range []string{"", "end", "peak"} {
			x, err := replay.Explain(r, at)
			require.NoError(t, err)
			require.Empty(t, x.NoReplay())
			assert.Equal(t, x.Reserved, x.Requested+x.Rounding+x.Unsplit+x.Pending+x.Reclaimable+x.Pinned, "%s", k.name)
			text, err := json.Marshal(x)
			require.NoError(t, err)
			var told struct {
				Pins []struct {
					Pinned alloc.Bytes `json:"pinned_bytes"`
				} `json:"pins"`
				Holes []struct {
					Bytes alloc.Bytes `json:"bytes"`
				} `json:"holes"`
			}
			require.NoError(t, json.Unmarshal(text, &told))
			sum, lines := alloc.Bytes(0), alloc.Bytes(0)
			for _, p := range told.Pins {
				sum += p.Pinned
			}
			for _, l := range x.Lines {
				lines += l.Pinned
			}
			assert.Equal(t, x.Pinned, sum)
			assert.LessOrEqual(t, lines, sum)
			holes := alloc.Bytes(0)
			for _, h := range told.Holes {
				holes += h.Bytes
			}
			assert.Equal(t, x.Pinned+x.Reclaimable, holes)
		}
	}
	r := open(t, "transformer-step-128", 0)
	x, err := replay.Explain(r, "peak")
	require.NoError(t, err)
	assert.Equal(t, 58280*alloc.MiB, x.Reserved)
	assert.Equal(t, alloc.Bytes(54802667524), x.Requested)
	assert.Equal(t, 58280*alloc.MiB-54802667524, x.Rounding+x.Unsplit+x.Reclaimable+x.Pinned)
	assert.Equal(t, "expandable_segments:True", x.Settings()[0].Setting)
}
