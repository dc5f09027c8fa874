package cli_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// page is the live page of a tracker with one buffer.
func page(t *testing.T) (url string) {
	t.Helper()
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: new(bytes.Buffer)})
	require.NoError(t, err)
	_, err = tr.Alloc(alloc.Shape{1 << 18}, alloc.Float32, tracker.Parameter)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/debug/gpumem/", live.Handler(tr))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.Close()
		tr.Close()
		gpu.Close()
	})
	return server.URL + "/debug/gpumem/"
}

// What --json prints is what the schema of the docs says.
func TestJSONMatchesItsSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "..", "docs", "command-line.schema.json"))
	require.NoError(t, err)
	dir, url := t.TempDir(), page(t)
	for name, args := range map[string][]string{
		"gpumemtrack.show/1":    {"show", url, url},
		"gpumemtrack.diff/1":    {"diff", url, url},
		"gpumemtrack.record/1":  {"record", "--source", "sim", "--duration", "50ms", "-o", filepath.Join(dir, "a.csv"), "-o", filepath.Join(dir, "a.png"), "--with", "all"},
		"gpumemtrack.sensors/1": {"sensors", "--source", "sim"},
		"gpumemtrack.top/1":     {"top", "--source", "sim", "--live", url, "--live", "http://127.0.0.1:1/"},
	} {
		t.Run(args[0], func(t *testing.T) {
			cmd := exec.Command(program, append(args, "--json")...)
			cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=0")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			require.NoError(t, err, "%s", &stderr)
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
			require.NoError(t, err)
			assert.NoError(t, schema.Validate(value), "%s", out)
			var told struct{ Schema string }
			require.NoError(t, json.Unmarshal(out, &told))
			assert.Equal(t, name, told.Schema)
		})
	}
}
