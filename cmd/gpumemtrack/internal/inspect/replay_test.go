package inspect

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// oldRun returns a tracker whose program needed 60 MiB at a time, and a page that shows it.
func oldRun(t *testing.T) (*tracker.MemTracker, *httptest.Server) {
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	for range 3 {
		b, err := tr.Alloc(alloc.Shape{20 << 20}, alloc.Uint8, tracker.Activation)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, b.Free()) })
	}
	page := httptest.NewServer(live.Handler(tr))
	t.Cleanup(page.Close)
	return tr, page
}

func command(args ...string) (code int, stdout, stderr string) {
	var out, errors bytes.Buffer
	code = run(args, nil, &out, &errors)
	return code, out.String(), errors.String()
}

func TestReplay(t *testing.T) {
	tr, page := oldRun(t)
	path := filepath.Join(t.TempDir(), "run.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, tr.Dump().WriteJSON(f))
	require.NoError(t, f.Close())

	for _, from := range []string{path, page.URL, page.URL + "/dump"} {
		code, out, errors := command("replay", from, "--memory", "60MiB")
		assert.Zero(t, code, errors)
		assert.Contains(t, out, "fits: ")
		code, out, _ = command("replay", from, "--memory", "59MiB")
		assert.Equal(t, cli.ExitUnfit, code)
		assert.Contains(t, out, "does not fit: ")
		assert.Contains(t, out, "20.0 MiB requested at replay_test.go:")
	}
	code, out, errors := command("replay", path, "--memory", "50MiB", "--json")
	assert.Equal(t, cli.ExitUnfit, code, errors)
	var result struct {
		Schema string
		Fits   bool
		OOM    struct {
			Event     int
			Requested alloc.Bytes `json:"requested_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	assert.Equal(t, "gpumemtrack.replay/2", result.Schema)
	assert.False(t, result.Fits)
	assert.Equal(t, 20*alloc.MiB, result.OOM.Requested)

	code, out, errors = command("replay", path, "--smallest", "--json")
	require.Zero(t, code, errors)
	var smallest struct {
		Results []struct {
			Smallest alloc.Bytes `json:"smallest_memory_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &smallest))
	require.Len(t, smallest.Results, 3)
	for _, r := range smallest.Results {
		assert.Equal(t, 60*alloc.MiB, r.Smallest)
	}

	code, out, errors = command("explain", path)
	assert.Zero(t, code, errors)
	assert.Contains(t, out, "reserved 60.0 MiB = 60.0 MiB requested + 0 B rounding")
	code, out, errors = command("explain", path, "--at", "peak", "--json")
	assert.Zero(t, code, errors)
	assert.Contains(t, out, `"schema":"gpumemtrack.explain/2"`)
}

func TestReplayRefuses(t *testing.T) {
	_, page := oldRun(t)
	path := page.URL + "/dump"
	snapshot := filepath.Join(t.TempDir(), "snapshot.json")
	answer, err := http.Get(page.URL + "/snapshot")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(snapshot, text, 0o644))
	for _, test := range []struct {
		code int
		want string
		args []string
	}{
		{cli.ExitUsage, "leave out --memory", []string{path, "--smallest", "--memory", "1GiB"}},
		{cli.ExitUsage, "want cache, expandable or driver", []string{path, "--allocator", "best"}},
		{cli.ExitUsage, "want at least 20.0 MiB", []string{path, "--conf", "max_split_size_mb:1"}},
		{cli.ExitUsage, "the driver has no settings", []string{path, "--allocator", "driver", "--conf", "max_split_size_mb:128"}},
		{cli.ExitUsage, "contradict each other", []string{path, "--allocator", "cache", "--conf", "expandable_segments:True"}},
		{cli.ExitUsage, "has no such device", []string{path, "--device", "7"}},
		{cli.ExitUsage, "name the file", nil},
		{cli.ExitFailed, "no events", []string{snapshot}},
		{cli.ExitFailed, "400 Bad Request", []string{page.URL + "/dump?light=1"}},
		{cli.ExitFailed, "no such file", []string{"missing.json"}},
	} {
		code, _, errors := command(append([]string{"replay"}, test.args...)...)
		assert.Equal(t, test.code, code, "%v", test.args)
		assert.Contains(t, errors, test.want)
	}
}
