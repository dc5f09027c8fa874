package recordings_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/recordings"
)

var update = flag.Bool("update", false, "write what the replays came to into testdata")

// known are the recordings that the results in testdata are of.
var known = []struct {
	name, source string
	recordings.Config
}{
	{name: "gcn-qwen3embed-3gpu-expandable-oom", source: "github.com/Constructor-Sun/code_location, memory_snapshot.pickle at 52e52b22",
		// The segments stand 91,200 MiB apart: 9/8 of the memory, in whole chunks of 20 MiB.
		Config: recordings.Config{Total: 81066 * alloc.MiB, Retries: true}},
	{name: "new/gradients-256-bf16", source: "github.com/Hyperion-shuo/assignment2-systems, memory_snapshot_large_cl256_fw_with_grad_bf16.pickle at 3ec468a4"},
	{name: "image-batches", source: "github.com/JasperSolt/EoR_NN, snapshot.pickle at 10cd0b4"},
	{name: "llama7b-offload-10streams", source: "github.com/Maphsge4/select_n, snapshot.pickle at dec166a3"},
	{name: "lm4-adam-bf16-ctx200", source: "github.com/NiuHuangxiaozi/assignment2-systems at 9d868b9"},
	{name: "segments-only-oom", source: "github.com/Yiyi-philosophy/LLM-inference"},
	{name: "texttosql-2gpu-maxsplit128", source: "github.com/albi2/thesis-text-to-SQL, dump_snapshot.pickle at dbc46212",
		Config: recordings.Config{Total: 16 * alloc.GiB}}, // which it does not say
	{name: "tinyllama-qlora-4bit", source: "github.com/cranberrii/ftcourse, memory_snapshot.pickle at 9f4902cf"},
	{name: "transformer-forward-128", source: "github.com/kkaitlyn111/cs336-a2-systems, memory_files at c1272e1"},
	{name: "transformer-forward-512", source: "github.com/kkaitlyn111/cs336-a2-systems, memory_files at c1272e1"},
	{name: "transformer-step-128", source: "github.com/kkaitlyn111/cs336-a2-systems, memory_files at c1272e1"},
	{name: "transformer-step-512", source: "github.com/kkaitlyn111/cs336-a2-systems, memory_files at c1272e1"},
	{name: "verl-vllm-private-pools", source: "github.com/volcengine/verl, mem.pickle at 27ee9a4d"},
}

// TestRecordings replays each recording, one part after the other, through a cache
// of its own. The result of each is what it was when the recording was first met.
func TestRecordings(t *testing.T) {
	dir := recordings.Dir(t)
	for _, k := range known {
		t.Run(k.name, func(t *testing.T) {
			path := filepath.Join(dir, k.name+".pickle.gz")
			if _, err := os.Stat(path); err != nil {
				t.Skipf("no %s among the recordings", k.name)
			}
			recording, err := recordings.Read(path)
			require.NoError(t, err)
			var got bytes.Buffer
			fmt.Fprintf(&got, "# %s\n", k.source)
			for i, part := range recording.Parts() {
				fmt.Fprintf(&got, "part %d: %s\n", i, replay(t, recording, part, k.Config))
			}
			golden(t, k.name, got.String())
		})
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.pickle.gz"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(dir, "new", "*.pickle.gz"))
	require.NoError(t, err)
	for _, path := range append(paths, more...) {
		name := strings.TrimSuffix(filepath.Base(path), ".pickle.gz")
		assert.FileExists(t, filepath.Join("testdata", name+".txt"), "a recording of which no results are kept")
	}
}

// replay runs a part through a cache, checks the cache's end against the
// recording's, and returns the result.
func replay(t *testing.T, recording *recordings.Recording, part *recordings.Part, cfg recordings.Config) string {
	var err error
	cfg.Cache, err = cache.ParseConfig(recording.Conf)
	require.NoError(t, err)
	before := recordings.Before(part.After, part.Events)
	cache, result, err := recordings.Replay(cfg, before, part.Events)
	require.NoError(t, err, part)
	cachetest.Invariants(t, cache)
	require.Equal(t, part.After, recordings.Held(cache, part.Pool), "every segment and block at the end")
	return fmt.Sprintf("%d allocs, %d driver calls %s, peak requested %d, allocated %d, reserved %d, %d retries, %d ooms",
		result.Allocs, result.DriverCalls, result.Hash, int64(result.PeakRequested), int64(result.PeakAllocated),
		int64(result.PeakReserved), result.Retries, result.OOMs)
}

func golden(t *testing.T, name, got string) {
	path := filepath.Join("testdata", filepath.Base(name)+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}
