package cli_test

import (
	"bytes"
	"errors"
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
	path := filepath.Join("..", "..", "..", "docs", "command-line.schema.json")
	schema, err := jsonschema.NewCompiler().Compile(path)
	require.NoError(t, err)
	estimate, err := jsonschema.NewCompiler().Compile(path + "#/$defs/estimate")
	require.NoError(t, err)
	dir, url := t.TempDir(), page(t)
	unknown := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(unknown, []byte(`{"model_type": "rwkv9", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}`), 0o600))
	seen := map[string]bool{}
	for _, args := range [][]string{
		{"show", url, url},
		{"diff", url, url},
		{"record", "--source", "sim", "--duration", "50ms", "-o", filepath.Join(dir, "a.csv"), "-o", filepath.Join(dir, "a.png"), "--with", "all"},
		{"sensors", "--source", "sim"},
		{"version"},
		{"top", "--source", "sim", "--live", url, "--live", "http://127.0.0.1:1/"},
		{"estimate", "resnet50", "--fits", "24GiB", "--train", "--max-batch"},
		{"estimate", "llama-3-8b", "--fits", "80GiB", "--zero", "3", "--seq", "64", "--min-replicas"},
		{"estimate", "llama-3-8b", "--fits", "24GiB", "--max-gpu-layers"},
		{"estimate", "llama-3-8b", "--fits", "24GiB", "--serve", "--engine", "llama.cpp", "--best-quantization"},
		{"estimate", "resnet50", "--fits", "t4", "--train", "--batch", "256"},
		{"estimate", "llama-3-70b", "--fits", "4GiB", "--train"},
		{"estimate", "resnet18", "--train", "--measured", url},
		{"estimate", unknown, "--serve"},
		{"estimate", "llama-3-8b", "--engine", "vllm", "--gpu", "h100", "--max-model-len", "8192"},
		{"estimate", "llama-3-8b", "--engine", "vllm", "--gpu", "h100", "--max-model-len", "8192", "--requests", "20"},
		{"estimate", "llama-3-8b", "--engine", "vllm", "--gpu", "4090", "--max-model-len", "131072"},
	} {
		t.Run(args[0], func(t *testing.T) {
			cmd := exec.Command(program, append(args, "--json")...)
			cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=0")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 { // the model does not fit
				require.NoError(t, err, "%s", &stderr)
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
			require.NoError(t, err)
			assert.NoError(t, schema.Validate(value), "%s", out)
			object := value.(map[string]any)
			assert.Equal(t, "gpumemtrack."+args[0]+"/1", object["schema"])
			for key := range object {
				seen[args[0]+" "+key] = true
			}
		})
	}
	help, err := exec.Command(program, "help", "estimate-json").Output()
	require.NoError(t, err)
	for key := range estimate.Properties {
		assert.Regexp(t, `(?m)^  ([a-z_]+, )?`+key+`\b`, string(help), "help tells what it is")
		assert.True(t, seen["estimate "+key], "no output has %s", key)
	}
}
