package inspect

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// dumpFile writes a tracker's dump.
func dumpFile(t *testing.T, tr *tracker.MemTracker) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.dump.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, tr.Dump().WriteJSON(f))
	require.NoError(t, f.Close())
	return path
}

func TestLeaks(t *testing.T) {
	tr := exporttest.Leaky(t)
	server := httptest.NewServer(live.Handler(tr))
	defer server.Close()
	for _, from := range []string{dumpFile(t, tr), server.URL} {
		out, errs, code := runs(t, "", "leaks", from)
		require.Zero(t, code, errs)
		assert.Contains(t, out, "leaks at the end of "+from)
		assert.Contains(t, out, "exporttest.forget looks forgotten: ")
		assert.Contains(t, out, "\tpath: ")

		out, errs, code = runs(t, "", "leaks", from, "--json")
		require.Zero(t, code, errs)
		var told struct {
			Schema  string
			Devices []leaksOf
		}
		require.NoError(t, json.Unmarshal([]byte(out), &told))
		assert.Equal(t, leaksSchema, told.Schema)
		require.Len(t, told.Devices, 1)
		require.Len(t, told.Devices[0].Suspects, 1)
		assert.Equal(t, tr.Suspects()[0].Tally, told.Devices[0].Suspects[0].Tally)
		assert.NotNil(t, told.Devices[0].Growth)
	}
	out, errs, code := runs(t, "", "leaks", dumpFile(t, newTracker(t)))
	require.Zero(t, code, errs)
	assert.Contains(t, out, "nothing looks forgotten, and no line holds ever more old buffers\n")
}

func TestLeaksOfPyTorch(t *testing.T) {
	tr := exporttest.Leaky(t)
	out, errs, code := runs(t, "", "leaks", pickleFile(t, tr.Dump()))
	require.Zero(t, code, errs)
	assert.Contains(t, out, "exporttest.forget looks forgotten: ")

	_, errs, code = runs(t, "", "leaks", pickleFile(t, &snapshot.Dump{Snapshot: tr.Snapshot()}))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "a PyTorch snapshot that does not say how long freed buffers lived: call torch.cuda.memory._record_memory_history() at the start")
}

// pickleFile writes a dump as PyTorch does.
func pickleFile(t *testing.T, d *snapshot.Dump) string {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, torch.Write(&file, d))
	path := filepath.Join(t.TempDir(), "run.pickle")
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o666))
	return path
}

func TestLayers(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	tr.Do("step", func() {
		tr.Do("conv\x1b[2J", func() {
			_, err := tr.Alloc(alloc.Shape{1 << 20}, alloc.Float32, "Activation")
			require.NoError(t, err)
		})
		tr.Do("bias", func() {})
	})
	path := dumpFile(t, tr)
	out, errs, code := runs(t, "", "layers", path)
	require.Zero(t, code, errs)
	assert.Contains(t, out, "sections that ended before the end of "+path)
	assert.Regexp(t, `(?m)^step +1 .* 4\.0 MiB`, out)
	assert.Regexp(t, `(?m)^"  conv\\x1b\[2J" +1 .* 4\.0 MiB`, out)
	for _, column := range layerColumns {
		_, errs, code := runs(t, "", "layers", path, "--sort", column)
		assert.Zero(t, code, errs)
	}
	out, errs, code = runs(t, "", "layers", path, "--sort", "path", "--json")
	require.Zero(t, code, errs)
	var told struct {
		Schema  string
		Devices []layersOf
	}
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, layersSchema, told.Schema)
	require.Len(t, told.Devices, 1)
	require.Len(t, told.Devices[0].Profile, 3)
	assert.Equal(t, "step/bias", told.Devices[0].Profile[1].Path)
	assert.Equal(t, 4*alloc.MiB, told.Devices[0].Profile[0].SelfPeak)

	_, errs, code = runs(t, "", "layers", path, "--sort", "colour")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, `--sort: parse column "colour": want one of tree, path`)
	_, errs, code = runs(t, "", "layers", dumpFile(t, newTracker(t)))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "it has no sections that ended: a program opens them with tr.Do or tr.Section,")
}
