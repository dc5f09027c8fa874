package inspect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
)

// walked is what testdata/walk.py of package torch says of a device: a plain walk over the file, in Python.
type walked struct {
	Events       int
	Live         int64
	Peak         int64
	Reserved     int64
	PeakReserved int64 `json:"peak_reserved"`
}

// withoutTimes were recorded before PyTorch 2.1, whose events have no times.
var withoutTimes = []string{"llama7b-offload-10streams.pickle.gz", "tinyllama-qlora-4bit.pickle.gz"}

// TestEveryRecordingThroughEveryCommand: whatever a command shows of a recording of a real GPU is what the plain walk
// says, and a replay calls the driver as PyTorch did.
func TestEveryRecordingThroughEveryCommand(t *testing.T) {
	folder := outside.Folder(t, "recordings")
	var files map[string]map[string]walked
	text, err := os.ReadFile("../../../../tracker/export/torch/testdata/recordings.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &files))
	for name, devices := range files {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); cachetest.RaceDetector && err == nil && info.Size() > 25<<10 {
			continue // a command has one goroutine for a file: the small ones are enough, beside each other
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum walked
			for _, device := range devices {
				sum.Events, sum.Live, sum.Peak = sum.Events+device.Events, sum.Live+device.Live, sum.Peak+device.Peak
			}
			shows(t, path, sum)
			for _, end := range []string{".json", ".pickle"} {
				shows(t, converted(t, path, end), sum)
			}
			assert.Equal(t, sum.Live, sumShown(t, converted(t, path, ".pb.gz"), "live"))
			converted(t, path, ".html")
			if times := !slices.Contains(withoutTimes, name); sum.Events > 0 && times {
				converted(t, path, ".trace.json")
			}
			explainsAndReplays(t, path, devices)

			out, errs, code := runs(t, "", "diff", path, path)
			assert.Zero(t, code, errs)
			assert.Contains(t, out, "no change")
			leaksNothing(t, path, sum.Events > 0 && !slices.Contains(withoutTimes, name))
			_, errs, code = runs(t, "", "layers", path) // of which PyTorch's files tell nothing
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, path)
		})
	}
}

// leaksNothing holds that no recording has a leak: they are of some steps of programs that are well.
// Without events and their times nobody can know.
func leaksNothing(t *testing.T, path string, known bool) {
	t.Helper()
	out, errs, code := runs(t, "", "leaks", path)
	if !known {
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, path)
		assert.Contains(t, errs, "_record_memory_history")
		return
	}
	assert.Zero(t, code, errs)
	assert.Contains(t, out, "nothing looks forgotten, and no line holds ever more old buffers")
	assert.NotContains(t, out, "more each")
	assert.NotContains(t, out, "looks forgotten: ")
}

// shows holds the sums of show to the walk.
func shows(t *testing.T, path string, want walked) {
	t.Helper()
	assert.Equal(t, want.Live, sumShown(t, path, "live"))
	if want.Events > 0 {
		assert.Equal(t, want.Peak, sumShown(t, path, "peak"))
	}
}

// sumShown is the sum of what show prints of all devices of a file.
func sumShown(t *testing.T, path, of string) int64 {
	t.Helper()
	args := []string{"show", path, "--json", "--top", "0", "--of", of}
	if of == "live" && !strings.HasSuffix(path, ".pb.gz") { // a profile has one moment
		args = append(args, "--at", "end")
	}
	out, errs, code := runs(t, "", args...)
	require.Zero(t, code, errs)
	var shown struct{ Lines []struct{ Bytes int64 } }
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	var sum int64
	for _, line := range shown.Lines {
		sum += line.Bytes
	}
	return sum
}

func converted(t *testing.T, path, end string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "converted"+end)
	_, errs, code := runs(t, "", "convert", path, "-o", to)
	require.Zero(t, code, errs)
	return to
}

// explainsAndReplays holds the accounts of each device to the walk, and replays it.
func explainsAndReplays(t *testing.T, path string, devices map[string]walked) {
	t.Helper()
	for device, want := range devices {
		out, errs, code := runs(t, "", "explain", path, "--json", "--at", "end", "--device", device)
		require.Zero(t, code, errs)
		var explained struct {
			Requested int64 `json:"requested_bytes"`
			Reserved  int64 `json:"reserved_bytes"`
			Pending   int64 `json:"pending_bytes"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &explained))
		assert.Equal(t, want.Reserved, explained.Reserved)
		assert.LessOrEqual(t, explained.Requested, want.Live)
		assert.LessOrEqual(t, want.Live, explained.Requested+explained.Pending, "pending blocks count whole")

		out, errs, code = runs(t, "", "replay", path, "--json", "--device", device)
		if want.Events == 0 {
			continue
		}
		require.Zero(t, code, errs)
		var replayed struct {
			Agreement map[string]int64
			Recorded  map[string]any
		}
		require.NoError(t, json.Unmarshal([]byte(out), &replayed))
		agreed := replayed.Agreement
		assert.Equal(t, agreed["recorded_driver_calls"], agreed["driver_calls"])
		assert.Zero(t, agreed["other_driver_calls"])
		assert.Equal(t, agreed["recorded_addresses"], agreed["addresses"])
		assert.Equal(t, want.PeakReserved, agreed["peak_reserved_bytes"])
	}
}
