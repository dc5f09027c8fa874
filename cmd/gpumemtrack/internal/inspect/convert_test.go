package inspect

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// recorded is a snapshot as PyTorch writes it, of two devices; the first has events.
const recorded = "../../../../tracker/export/torch/testdata/pytorch4.pickle"

func TestConvertTakesASnapshotOfPyTorchToEveryView(t *testing.T) {
	dir := t.TempDir()
	for _, end := range []string{".pb.gz", ".json", ".pickle", ".html"} {
		var stdout, stderr bytes.Buffer
		path := filepath.Join(dir, "out"+end)
		require.Zero(t, run([]string{"convert", recorded, "-o", path}, nil, &stdout, &stderr), stderr.String())
		assert.Empty(t, stderr.String())
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.NotEmpty(t, text)
	}
	f, err := files.ReadFile(filepath.Join(dir, "out.json"))
	require.NoError(t, err)
	assert.Equal(t, "dump", f.Format)
	assert.Equal(t, 1, f.Dump.Snapshot.Ordinal)
	require.Len(t, f.Dump.Others, 1)
	assert.Equal(t, 4, len(slices.Collect(f.Dump.Others[0].Events())))

	var stdout, stderr bytes.Buffer
	trace := filepath.Join(dir, "out.trace.json")
	require.Zero(t, run([]string{"convert", recorded, "-o", trace, "--device", "0"}, nil, &stdout, &stderr), stderr.String())
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"name":"reserved"`)
}

func TestAViewThatAFileCannotGiveIsAnError(t *testing.T) {
	dir := t.TempDir()
	profile, untimed := filepath.Join(dir, "p.pb.gz"), filepath.Join(dir, "untimed.json")
	require.NoError(t, os.WriteFile(untimed, []byte(`{"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 8}]]}`), 0o644))
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"convert", recorded, "-o", profile}, nil, &stdout, &stderr), stderr.String())
	out := filepath.Join(dir, "out")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"convert", profile, "-o", out + ".html"}, "a pprof profile has sums by call stack only: no single buffers, no segments and no events, which a .html file needs"},
		{[]string{"convert", recorded, "-o", out + ".trace.json"}, "the PyTorch snapshot has no events, of which a .trace.json file consists: call torch.cuda.memory._record_memory_history()"},
		{[]string{"convert", untimed, "-o", out + ".trace.json"}, "the events of the PyTorch snapshot have no times"},
		{[]string{"convert", recorded, "--device", "5", "-o", out + ".html"}, "it has no device 5: want one of 0, 1"},
	} {
		stderr.Reset()
		assert.Equal(t, 1, run(test.args, nil, &stdout, &stderr))
		assert.Contains(t, stderr.String(), test.want)
		assert.NoFileExists(t, test.args[len(test.args)-1])
	}
}

func TestShowOfPeak(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"show", "--of", "peak", recorded}, nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stdout.String(), "peak memory of "+recorded+", cuda:0, cuda:1")
	assert.Contains(t, stdout.String(), "train.py:42 train_step")

	profile := filepath.Join(t.TempDir(), "gpu.pb.gz")
	require.Zero(t, run([]string{"convert", recorded, "-o", profile}, nil, &stdout, &stderr), stderr.String())
	assert.Equal(t, 1, run([]string{"show", "--of", "peak", profile}, nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "it has only live memory, not peak memory")
}

// TestNamesFromFilesDoNothingToTheTerminal: escape sequences and newlines.
func TestNamesFromFilesDoNothingToTheTerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"segments": [{"device": 0, "address": 0, "total_size": 8, "blocks": [{"size": 8, "state": "active_allocated",
		"frames": [{"name": "f\u001b]0;title\u0007\nx", "filename": "/home/me/train.py", "line": 1}]}]}], "device_traces": []}`), 0o644))
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"show", path}, nil, &stdout, &stderr), stderr.String())
	assert.NotContains(t, stdout.String(), "\x1b")
	assert.Contains(t, stdout.String(), `"train.py:1 f\x1b]0;title\a\nx"`)
}

// TestPageSaysWhatWouldHelp, first of the device whose memory ran out.
func TestPageSaysWhatWouldHelp(t *testing.T) {
	path := filepath.Join(outside.Folder(t, "recordings"), "gcn-qwen3embed-3gpu-expandable-oom.pickle.gz")
	page := filepath.Join(t.TempDir(), "gcn.html")
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"convert", path, "-o", page}, nil, &stdout, &stderr), stderr.String())
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(text), "No setting helps: 4.7 GiB too much. part3.py:174 step2 holds 29.7 GiB.")
}
