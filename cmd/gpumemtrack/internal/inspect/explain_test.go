package inspect

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// dumpRank writes the dump of a rank that keeps every second of so many buffers, so that
// the others are pinned between them.
func dumpRank(t *testing.T, path string, rank, buffers int) {
	t.Helper()
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard, Origin: snapshot.Origin{Host: "node", PID: 100 + rank, Program: "train", Rank: &rank, WorldSize: 3}})
	require.NoError(t, err)
	defer tr.Close()
	for i := range buffers {
		b, err := tr.AllocBytes(100*alloc.KiB, tracker.Activation)
		require.NoError(t, err)
		if i%2 == 1 {
			require.NoError(t, b.Free())
		}
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, tr.Dump().WriteJSON(f))
	require.NoError(t, f.Close())
}

func runCommand(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	require.Zero(t, run(args, strings.NewReader(""), &out, &errs), "%s", errs.String())
	return out.String()
}

func TestExplainOfRanks(t *testing.T) {
	dir := t.TempDir()
	for rank, buffers := range []int{4, 12, 8} {
		dumpRank(t, filepath.Join(dir, string(rune('a'+rank))+".dump.json"), rank, buffers)
	}
	dumpRank(t, filepath.Join(dir, "a.later.dump.json"), 0, 2)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "readme.txt"), []byte("no dump\n"), 0o600))

	out := runCommand(t, "explain", dir)
	assert.Contains(t, out, "reserved memory at the end of 3 dumps; 1 other file skipped\n")
	assert.Less(t, strings.Index(out, "rank 2 on node "), strings.Index(out, "rank 1 on node "), "most pinned first")
	assert.Contains(t, out, "most is pinned in rank 0 on node:")
	assert.Contains(t, out, "explain_test.go", "its lines are told")

	var all struct {
		Schema    string
		Processes []explained
	}
	require.NoError(t, json.Unmarshal([]byte(runCommand(t, "explain", "--json", dir)), &all))
	assert.Equal(t, "gpumemtrack.explain.ranks/1", all.Schema)
	var processSet []int
	for _, e := range all.Processes {
		processSet = append(processSet, *e.Origin.Rank)
		assert.Equal(t, e.Reserved, e.Requested+e.Rounding+e.Unsplit+e.Pending+e.Reclaimable+e.Pinned)
	}
	assert.Equal(t, []int{0, 2, 1}, processSet)
	assert.Equal(t, 100*alloc.KiB, all.Processes[0].Requested, "the later dump counts")
}

func TestExplainOfNoDumps(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "readme.txt"), []byte("no dump\n"), 0o600))
	var errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"explain", dir}, strings.NewReader(""), io.Discard, &errs))
	assert.Contains(t, errs.String(), "none of the 1 files is a dump")
}
