package estimating

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

const savedFiles = "../../../../estimate/checkpoint/testdata/saved/"

// Weights of an unknown architecture are one answer: exact by type, and unknown where layers are needed.
func TestEstimateWeightsOfAnUnknownFamily(t *testing.T) {
	for _, c := range []struct {
		flags  string
		code   int
		stdout []string
		stderr string
	}{
		{"", 0, []string{
			"unknown: 726 parameters, 1.5 KiB, in 10 tensors", "│ BF16      │       5 │      690 │ 1.3 KiB │", "│ F32       │       4 │       72 │   288 B │",
			`activations: unknown, cache: unknown: open config.json: model_type: "nobody_has_this" is none of`,
		}, ""},
		{"", 0, []string{"buffers: 152 B"}, ""},
		{"--lora 8", cli.ExitFailed, nil, "--lora needs the layers of the model, which are unknown: open config.json: model_type"},
		{"--serve", 0, []string{"cache: unknown"}, ""},
		{"--batch 2 --seq 10", 0, []string{"activations: unknown"}, ""},
		{"--train", 0, []string{"gradients: 1.5 KiB", "optimizer: 3.0 KiB", "activations: unknown"}, ""},
		{"--fits 24GiB", cli.ExitUnknown, []string{"726 parameters"}, "unknown: whether it fits in 24.0 GiB is unknown"},
		{"--fits 1KiB", cli.ExitUnfit, []string{"726 parameters"}, "does not fit in 1.0 KiB: its weights alone take 1.6 KiB"},
		{"--fits 24GiB --weights-only", 0, []string{"The weights fit in 24.0 GiB."}, ""},
		{"--fits 24GiB --max-batch", cli.ExitFailed, nil, "no input"},
		{"--serve --engine llama.cpp", cli.ExitFailed, nil, "is none of"},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, c.code, run(append([]string{"estimate", savedFiles + "unknown"}, strings.Fields(c.flags)...), nil, &stdout, &stderr), c.flags)
		for _, want := range c.stdout {
			assert.Contains(t, stdout.String(), want, c.flags)
		}
		assert.Contains(t, stderr.String(), c.stderr, c.flags)
	}
}

// The error of an unknown family is for users of the command.
func TestUnknownFamilyInPlainWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"model_type": "no_such"}`), 0o600))
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitFailed, run([]string{"estimate", path}, nil, &stdout, &stderr))
	assert.Regexp(t, "^gpumemtrack: open config.json: model_type: \"no_such\" is none of the \\d+ families that are known, which `gpumemtrack help estimate-models` lists; nor are", stderr.String())
	assert.NotContains(t, stderr.String(), "checkpoint")
	assert.NotContains(t, stderr.String(), "unknown architecture")
}

// The cache of an unknown family is known if its config has the numbers under the usual names.
func TestEstimateWeightsAndCacheOfAnUnknownFamily(t *testing.T) {
	weights, err := os.ReadFile(savedFiles + "unknown/model.safetensors")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "rwkv9", "hidden_size": 4096,
		"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}`), 0o600))
	for flags, want := range map[string][]string{
		"":                             {"\nactivations: unknown: open config.json", "--serve counts keys and values"},
		"--serve --batch 2 --seq 1024": {"keys and values: 256.0 MiB", "\nactivations: unknown: open config.json"},
	} {
		var stdout, stderr bytes.Buffer
		require.Zero(t, run(append([]string{"estimate", dir}, strings.Fields(flags)...), nil, &stdout, &stderr), stderr.String())
		for _, text := range want {
			assert.Contains(t, stdout.String(), text, flags)
		}
	}
}

// Checkpoints of PyTorch are answered in the same way, and a piece of one says so.
func TestEstimateTorchCheckpoints(t *testing.T) {
	for path, want := range map[string]string{
		"training.pt":            `Note: not weights, and not counted: 2.3 KiB, of what is not under "model"`,
		"sharded_bin":            "sharded_bin: 726 parameters, 1.5 KiB, in 10 tensors",
		"dcp_model":              "dcp_model: 957 parameters, 2.0 KiB, in 5 tensors",
		"dcp_safetensors":        "dcp_safetensors: 957 parameters, 2.0 KiB, in 5 tensors",
		"dcp/.metadata":          "dcp: 957 parameters, 2.0 KiB, in 5 tensors",
		"legacy.pt":              "torch.save(torch.load(FILE, weights_only=True), FILE)",
		"dcp_model/__0_0.distcp": "it is one piece of a checkpoint",
		"dcp_safetensors/shard-00001-model-00001-of-00001.safetensors": "Note: this file is one piece of a model",
	} {
		var stdout, stderr bytes.Buffer
		run([]string{"estimate", savedFiles + path}, nil, &stdout, &stderr)
		assert.Contains(t, stdout.String()+stderr.String(), want, path)
	}
}

// What is unknown is null.
func TestEstimateWeightsAloneAsJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUnknown, run([]string{"estimate", savedFiles + "unknown", "--json", "--fits", "24GiB"}, nil, &stdout, &stderr))
	var answer map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &answer))
	for _, key := range []string{"activations_bytes", "cache_bytes", "needed_upper_bytes", "fits", "gradients_bytes", "optimizer_bytes"} {
		value, ok := answer[key]
		assert.True(t, ok, key)
		assert.Nil(t, value, key)
	}
	assert.EqualValues(t, 1524, answer["weights_bytes"])
	assert.EqualValues(t, 152, answer["buffers_bytes"])
	assert.Len(t, answer["stored"], 3)
	assert.Equal(t, []any{"activations", "cache"}, answer["unknown"])
}
