package inspect

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// run runs a command of this room.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(args, stdin, stdout, stderr,
		cli.Command{Name: "show", New: Show}, cli.Command{Name: "diff", New: Diff}, cli.Command{Name: "leaks", New: Leaks}, cli.Command{Name: "layers", New: Layers},
		cli.Command{Name: "convert", New: Convert}, cli.Command{Name: "explain", New: Explain}, cli.Command{Name: "replay", New: Replay}, cli.Command{Name: "chart", New: Chart})
}

// newTracker is a tracker with one buffer of a MiB.
func newTracker(t *testing.T) *tracker.MemTracker {
	t.Helper()
	tr := exporttest.New(t, tracker.Config{})
	_, err := tr.Alloc(alloc.Shape{1 << 18}, alloc.Float32, tracker.Parameter)
	require.NoError(t, err)
	return tr
}

// served is a live page of such a tracker.
func served(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(live.Handler(newTracker(t)))
	t.Cleanup(server.Close)
	return server.URL
}

func runs(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), code
}

func TestShowOfALivePage(t *testing.T) {
	url := served(t)
	for _, address := range []string{url, url + "/", url + "/dump"} {
		out, errs, code := runs(t, "", "show", address)
		assert.Zero(t, code, errs)
		assert.Contains(t, out, "newTracker", "the function")
		assert.Contains(t, out, "1.0 MiB")
	}
	out, errs, code := runs(t, "", "show", url, "--json")
	require.Zero(t, code, errs)
	var told shown
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, showSchema, told.Schema)
	assert.Equal(t, alloc.MiB, told.Total.Bytes)
	assert.Equal(t, url, told.Files[0].Name)

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	_, errs, code = runs(t, "", "show", other.URL)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "404 Not Found: want the URL of a live page")
	out, errs, code = runs(t, "", "explain", url)
	assert.Zero(t, code, errs)
	assert.NotEmpty(t, out)
}

func TestStandardInput(t *testing.T) {
	_, errs, code := runs(t, "", "show", "-")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "standard input: not a snapshot: the file is empty")
}

func TestTablesFitTheTerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	const long = "train.go:20 github.com/somebody/something/with/a/very/long/path/to.(*Model).forward"
	fitted := func(width int) string {
		g := cli.MemoryTable("Share", "Site", "Memory", "Count", "Share")
		g.AppendRow([]any{long, alloc.MiB, 1, "10.0 %"})
		g.AppendRow([]any{"short.go:1 main.main", alloc.MiB, 1, "10.0 %"})
		g.AppendFooter([]any{"all", alloc.MiB, 1, "100.0 %"})
		return g.Fitted(width)
	}
	assert.Contains(t, fitted(0), long)
	for _, width := range []int{200, 100, 80, 60} {
		drawn := fitted(width)
		for line := range strings.Lines(drawn) {
			assert.LessOrEqual(t, len([]rune(strings.TrimSpace(line))), width, line)
		}
		assert.Contains(t, drawn, "forward", "the end of a name tells most")
		assert.Contains(t, drawn, "Memory")
		assert.Equal(t, width > 60, strings.Contains(drawn, "Share"), width)
	}
}

func TestPaintedChanges(t *testing.T) {
	assert.Equal(t, painted(cli.Paint("+1.0 MiB", cli.Red, true)), paintedChange(alloc.MiB, true))
	assert.Equal(t, painted(cli.Paint("-1.0 MiB", cli.Green, true)), paintedChange(-alloc.MiB, true))
	assert.Equal(t, painted("+1.0 MiB"), paintedChange(alloc.MiB, false))
	assert.Equal(t, "0 B", string(paintedChange(0, true)))
}

// A damaged recording is not sent back to the command that could not read it.
func TestDamagedRecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"schema":"gpumemtrack.recording/1","quantities":["speed"]}`+"\n"), 0o600))
	_, errs, code := runs(t, "", "chart", path)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, `"speed"`)
	assert.NotContains(t, errs, "run gpumemtrack chart")
}

// Who shows a model's file is told the command for it, by the first bytes alone.
func TestFilesOfModels(t *testing.T) {
	for name, text := range map[string]string{
		"model.gguf":         "GGUF\x03\x00\x00\x00",
		"model.safetensors":  "\x40\x00\x00\x00\x00\x00\x00\x00{\"w\": {}}",
		"model.pt":           "PK\x03\x04\x00\x00\x08\x08\x00\x00model/data.pkl",
		"config.json":        `{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}`,
		"transformer":        ` {"_class_name": "FluxTransformer2DModel"}`,
		"weights.index.json": `{"metadata": {}, "weight_map": {}}`,
	} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		for _, args := range [][]string{{"show", path}, {"convert", path, "-o", "a.html"}, {"explain", path}} {
			_, errs, code := runs(t, "", args...)
			assert.Equal(t, cli.ExitFailed, code)
			assert.Equal(t, "gpumemtrack: "+path+" is a model's file: run gpumemtrack estimate "+path+"\n", errs)
		}
	}
	path := filepath.Join(t.TempDir(), "other.zip")
	require.NoError(t, os.WriteFile(path, []byte("PK\x03\x04\x00\x00"), 0o600))
	_, errs, _ := runs(t, "", "show", path)
	assert.Contains(t, errs, "is an archive: unpack it into a folder")

	dir := filepath.Dir(path)
	for name, text := range map[string]string{"config.json": `{"model_type": "llama"}`, "run.csv": "time_seconds,gpu,"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, errs, _ = runs(t, "", "show", recorded, dir)
	assert.Empty(t, errs)
	out, errs, code := runs(t, "", "explain", dir)
	assert.Equal(t, cli.ExitFailed, code, out)
	assert.Contains(t, errs, "none of the 3 files is a dump")
}

// TestDamagedSegmentsAreTold: their buffers are in the table, and no reader takes the file for a whole one.
func TestDamagedSegmentsAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "torn.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"segments": [{"device": 0, "address": 1048576, "total_size": 4096, "stream": 0,
		"blocks": [{"address": 1048576, "size": 512, "state": "active_allocated"}]}], "device_traces": [[]]}`), 0o666))
	out, errs, code := runs(t, "", "show", path)
	require.Zero(t, code, errs)
	assert.Contains(t, out, "Not read, as their blocks do not tile them: 1 of the segments of "+path+"\n")
	out, errs, code = runs(t, "", "show", path, "--json")
	require.Zero(t, code, errs)
	assert.Contains(t, out, `"broken_segments":1`)
}
