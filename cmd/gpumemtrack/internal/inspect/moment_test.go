package inspect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failedRun writes a snapshot of PyTorch: buffers of 10, 20 and 30 MiB, an error, and then the frees of all but the
// first, which are what a program does when it ends.
func failedRun(t *testing.T) string {
	type m = map[string]any
	event := func(i int, action string, at, mib int) m {
		return m{"action": action, "addr": int64(at)<<20 + 1<<40, "size": mib << 20, "stream": 0, "time_us": i, "frames": []m{{"filename": "train.py", "line": mib, "name": "step"}}}
	}
	events := []m{
		event(1, "segment_alloc", 0, 64), event(2, "alloc", 0, 10), event(3, "alloc", 10, 20), event(4, "alloc", 30, 30),
		{"action": "oom", "addr": 0, "device_free": 1 << 20, "size": 500 << 20, "stream": 0, "time_us": 5, "frames": []m{}},
		event(6, "free_requested", 10, 20), event(7, "free_completed", 10, 20), event(8, "free_requested", 30, 30), event(9, "free_completed", 30, 30),
	}
	text, err := json.Marshal(m{"device_traces": [][]m{events}, "segments": []m{{
		"device": 0, "address": int64(1) << 40, "total_size": 64 << 20, "stream": 0, "segment_type": "large", "is_expandable": false,
		"blocks": []m{
			{"address": int64(1) << 40, "size": 10 << 20, "requested_size": 10 << 20, "state": "active_allocated", "frames": []m{{"filename": "train.py", "line": 10, "name": "step"}}},
			{"address": int64(1)<<40 + 10<<20, "size": 54 << 20, "requested_size": 0, "state": "inactive"},
		},
	}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "failed.json")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	return path
}

func TestMoments(t *testing.T) {
	path := failedRun(t)
	for at, want := range map[string]struct {
		mib  int
		name string
	}{
		"": {60, "the error"}, "oom": {60, "the error"}, "end": {10, "the end"}, "peak": {60, "the peak"}, "3": {30, "event 3"},
	} {
		args := []string{path}
		if at != "" {
			args = append(args, "--at", at)
		}
		out, errs, code := runs(t, "", append([]string{"show"}, args...)...)
		require.Zero(t, code, errs)
		assert.Contains(t, out, fmt.Sprintf("live memory at %s of %s", want.name, path))
		assert.Regexp(t, fmt.Sprintf("│ all +│ +%d.0 MiB │", want.mib), out)
		out, errs, code = runs(t, "", append([]string{"show", "--json"}, args...)...)
		require.Zero(t, code, errs)
		var told shown
		require.NoError(t, json.Unmarshal([]byte(out), &told))
		assert.EqualValues(t, want.mib<<20, told.Total.Bytes)
		assert.Equal(t, want.name, told.Files[0].Moment.String())

		out, errs, code = runs(t, "", append([]string{"explain"}, args...)...)
		require.Zero(t, code, errs)
		assert.Contains(t, out, "at "+want.name)
		assert.Contains(t, out, fmt.Sprintf(": reserved 64.0 MiB = %d.0 MiB requested", want.mib))
		assert.Contains(t, out, "a replay with the recorded settings reserves 560.0 MiB, with the 500.0 MiB that failed; compared with that:\n")
	}
	out, errs, code := runs(t, "", "explain", path)
	require.Zero(t, code, errs)
	assert.Contains(t, out, "at the error, when a request of 500.0 MiB failed: reserved")
	assert.Contains(t, out, " inactive\nwhat would help: No setting helps: 495.0 MiB too much. train.py:30 step holds 30.0 MiB.\n")
	out, errs, code = runs(t, "", "explain", path, "--json")
	require.Zero(t, code, errs)
	assert.Contains(t, out, `"advice":"No setting helps: `)
	out, errs, code = runs(t, "", "explain", path, "--at", "end")
	require.Zero(t, code, errs)
	assert.NotContains(t, out, "what would help")
	for at, want := range map[string]string{"start": "want end, peak, oom, or the number of an event", "99": "no event 99"} {
		_, errs, code := runs(t, "", "show", path, "--at", at)
		assert.NotZero(t, code)
		assert.Contains(t, errs, want)
	}
	_, errs, code = runs(t, "", "show", path, "--at", "oom", "--of", "peak")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "--of peak is not memory at a moment")
	out, errs, code = runs(t, "", "diff", path, path, "--at", "end")
	require.Zero(t, code, errs)
	assert.Contains(t, out, "before: at the end of "+path)

	page := filepath.Join(t.TempDir(), "failed.html")
	_, errs, code = runs(t, "", "convert", path, "-o", page)
	require.Zero(t, code, errs)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(text), `Live buffers<span class="at">, at the error`)
	assert.Contains(t, string(text), `id="live">60.0 MiB`)
}

// TestLogs are of the moment of their error, and what a log does not tell is not shown as nothing.
func TestLogs(t *testing.T) {
	prefix := "I tensorflow/core/common_runtime/bfc_allocator.cc:1] "
	cut := filepath.Join(t.TempDir(), "cut.log") // without its first line
	require.NoError(t, os.WriteFile(cut, []byte(prefix+"InUse at 1000 of size 512 next 1\n"+prefix+"Free  at 1200 of size 256 next 2\n"), 0o666))
	out, errs, code := runs(t, "", "show", cut)
	require.Zero(t, code, errs)
	assert.Contains(t, out, "live memory at the error of "+cut)
	for _, args := range [][]string{{"show", "--at", "peak", cut}, {"explain", "--at", "7", cut}, {"replay", cut}} {
		_, errs, code = runs(t, "", args...)
		assert.Equal(t, 1, code, args)
		assert.NotContains(t, errs, "torch", args)
	}

	short := filepath.Join(t.TempDir(), "short.log")
	require.NoError(t, os.WriteFile(short, []byte("W external/xla/xla/tsl/framework/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.0KiB (rounded to 1024)requested by op\n"), 0o666))
	out, errs, code = runs(t, "", "show", short)
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, "short.log: the log does not tell what is in use: see what it tells with gpumemtrack explain")
}
