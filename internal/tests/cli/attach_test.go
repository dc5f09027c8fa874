package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// TestAttachedLinesMatchTheirSchema, those of device memory and those of pinned memory.
func TestAttachedLinesMatchTheirSchema(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("attach is for Linux")
	}
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "..", "docs", "command-line.schema.json") + "#/$defs/attach")
	require.NoError(t, err)
	dir := t.TempDir()
	client, lines := filepath.Join(dir, "client"), filepath.Join(dir, "lines.jsonl")
	source := filepath.Join(dir, "client.c")
	require.NoError(t, os.WriteFile(source, []byte(`
		int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int);
		int cuMemAlloc_v2(unsigned long long *, unsigned long), cuMemFree_v2(unsigned long long), cuMemHostAlloc(void **, unsigned long, unsigned);
		int main(void) {
			void *context, *host;
			unsigned long long p;
			return cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&p, 1 << 20) || cuMemFree_v2(p) || cuMemHostAlloc(&host, 4096, 0);
		}`), 0o600))
	text, err := exec.Command("gcc", "-g", "-o", client, source, "-L"+libs.Dir, "-l:libcuda.so.1").CombinedOutput()
	require.NoError(t, err, "%s", text)
	cmd := emulated(t, "attach", "--preload", "--every", "1h", "--json="+lines, "--", client)
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed, err := os.ReadFile(lines)
	require.NoError(t, err)
	var devices []string
	for line := range strings.Lines(string(printed)) {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err)
		assert.NoError(t, schema.Validate(value), line)
		object := value.(map[string]any)
		devices = append(devices, object["device"].(string))
		peak := object["end"].(map[string]any)["peak_stacks"].(map[string]any)["stacks"].([]any)
		if object["device"] == "GPU" {
			require.Len(t, peak, 1)
			assert.EqualValues(t, "main", peak[0].(map[string]any)["call_site"].(map[string]any)["function"])
		}
	}
	assert.ElementsMatch(t, []string{"GPU", "Pinned host memory"}, devices)
	assert.True(t, bytes.HasSuffix(printed, []byte("\n")))
}
